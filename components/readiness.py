"""The gate after the ranks: `up` ends when a real completion came back, or with the reason why none can."""

import json
from collections.abc import Sequence

import pulumi
import pulumi_command as command

from components.engine import Engine
from components.node import Node
from components.rank.spec import RankSpec
from components.settings.cluster import ClusterSettings
from components.settings.kv_pool import expected_kv_tokens
from components.start.wait import Report, WaitInputs
from rank.probe import WarmUp


class Readiness(pulumi.ComponentResource):
    """Watches all ranks from the control host, over the same SSH; runs again whenever a rank's container is new."""

    report: pulumi.Output[Report | None]
    """None in a preview that has not run it yet."""

    def __init__(
        self,
        cluster: ClusterSettings,
        specs: Sequence[RankSpec],
        nodes: Sequence[Node],
        engine: Engine,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:readiness:Readiness", "readiness", None, opts)
        limits = cluster.readiness
        inputs: WaitInputs = {
            "ssh_config": str(cluster.ssh_config) if cluster.ssh_config else None,
            "nodes": [
                {"role": node.role, "ssh": node.settings.ssh, "container": spec.name}
                for node, spec in zip(nodes, specs, strict=True)
            ],
            "base_url": cluster.engine.local_url,
            "model": cluster.engine.served_model_name[0],
            "stack": pulumi.get_stack(),
            "timeout_s": limits.timeout_s,
            "completion_timeout_s": limits.completion_timeout_s,
            "warm_up": warm_up(cluster),
            "expected_kv_tokens": expected_kv_tokens(cluster),
        }
        wait = command.local.Command(
            "ready",
            create="python3 scripts/wait_ready",
            # an environment, not triggers: waiting again is an update, and only the ranks show as replaced
            environment={
                "SPARK_WAIT": json.dumps(inputs, sort_keys=True),
                "SPARK_RANKS": pulumi.Output.all(*[rank.id for rank in engine.ranks]).apply(",".join),
            },
            logging=command.local.Logging.STDERR,
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=engine.ranks),
        )
        self.report = wait.stdout.apply(lambda text: json.loads(text) if text else None)
        self.register_outputs({})


def warm_up(cluster: ClusterSettings) -> WarmUp:
    """The shapes that this stack will serve: some and all of its sequences at once, and a prompt longer than a step."""
    limits, engine = cluster.readiness, cluster.engine
    most, step = engine.max_num_seqs, engine.max_num_batched_tokens
    fits = 2 * step + limits.warmup_max_tokens <= engine.max_model_len
    return {
        "streams": sorted({n for n in (1, 2, 4) if n < most} | {most}),
        # a word of the prompt is at least a token
        "prompt_tokens": step + 1 if fits else 0,
        "passes": limits.warmup_passes,
        "max_tokens": limits.warmup_max_tokens,
        "agree": limits.warmup_agree,
        "limit_s": limits.warmup_limit_s,
    }
