"""Build the CPU engine's image into the cache: `python -m lab.vllm_cpu`. It says what it needs, and shows progress.

Exit codes: 0 the image is in the cache; 1 it cannot be built or run here, with the reasons.
"""

import sys

from lab.report import LabError, elapsed_s, say
from lab.vllm_cpu import image, needs


def main() -> int:
    say(f"engine's image: vLLM {image.VERSION} for the CPU; {needs.WORDS}")
    try:
        needs.check(is_built=image.base_file().exists())
        built = image.build()
    except LabError as error:
        print(f"lab.vllm_cpu failed after {elapsed_s():.0f} s: {error}", file=sys.stderr)
        return 1
    size = sum(layer.size for layer in built.layers) / 2**20
    say(f"engine's image: {built.digest[:19]}, {size:,.0f} MiB compressed, is in {built.layers[0].file.parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
