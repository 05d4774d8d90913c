"""Which of a checkpoint's tensors the engine has a place for, by the names that the image's own class takes.

The startup patch for a vision tower edits the real file at this path; a patch for the lab may do the same.
"""

import re
from collections.abc import Iterable


class DeepseekV4ForCausalLM:
    """The text model with its drafter (`mtp.`)."""

    TAKES: tuple[str, ...] = ("embed.", "layers.", "norm.", "head.weight", "hc_head", "mtp.")
    UNKNOWN = re.compile(r"\.bias_vl$|^layers\.[0-2]\.ffn\.gate\.bias$")
    """Names that no parameter of their module has. The first three layers route by hash, without a bias."""

    @classmethod
    def load_weights(cls, names: Iterable[str]) -> None:
        """Raises ValueError for a tensor of an unknown module, KeyError for one that its module does not have."""
        for name in names:
            if not name.startswith(cls.TAKES):
                raise ValueError(
                    f"There is no module or parameter named {name.partition('.')[0]!r} in {cls.__name__}. "
                    f"The available parameters belonging to  ({cls.__name__}) are: {{'lm_head.weight', ...}}"
                )
            if cls.UNKNOWN.search(name):
                raise KeyError(re.sub(r"\.gate\.bias$", ".gate.e_score_correction_bias", name))
