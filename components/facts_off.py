"""`facts: off`: a preview by somebody who reaches no node, from the stack file and the state alone.

What only the nodes' facts know, or only a machine that can reach the nodes, is left out of the comparison with the
state, so that the preview shows no change that an up would not make.
"""

import pulumi

from components.settings.base import SettingsError

LEFT_OUT = {
    # the generation
    "docker:index/container:Container": ["labels"],
    # whether the SSH configuration shares connections already
    "pulumi:providers:docker": ["sshOpts"],
    # the key and the host key
    "command:remote:Command": ["connection"],
}
"""Inputs by type of resource."""
NOTED = ("-gid", "-page-cache")
"""Ends of the names of commands whose line begins with a note made from facts."""


def preview_only() -> None:
    """Prepare the program for a preview without facts. Raises SettingsError in an up."""
    if not pulumi.runtime.is_dry_run():
        # no preflight runs and no host key is checked
        raise SettingsError(["facts: off is for previews: set it to on before an up"])
    pulumi.log.warn("facts: off: this preview knows the stack file and the state, not the nodes")
    pulumi.runtime.register_stack_transformation(leave_out)


def leave_out(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
    ignored = list(LEFT_OUT.get(args.type_, []))
    if args.name.endswith(NOTED):
        ignored.append("create")
    if not ignored:
        return None
    opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(ignore_changes=ignored))
    return pulumi.ResourceTransformationResult(args.props, opts)
