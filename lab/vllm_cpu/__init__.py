"""The lab's other runtime image: a real vLLM, built for CPUs, in place of the stand-in engine."""
