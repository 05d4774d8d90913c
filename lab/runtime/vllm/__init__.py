"""A stand-in for vLLM 0.25 in the lab: the command line, the start and its log lines, the rendezvous and the API.

It has no GPU, no weights and no model, and its answers are canned. What a deployment sees of the engine follows vLLM's
sources and the logs of real ranks, so that what works against it is worth trying on a real pair. It has variables of
its own, which a real pair does not set:

    LAB_FAULTS_URL      where to read faults; empty: nowhere. Default: the control host's hub, as machines reach it
    LAB_SYSFS           a folder in place of /sys; if set, GPU, /dev/infiniband and memlock are not checked
    LAB_SPEED           a factor on all of its own pauses, default 1.0; tests use 0
"""

__version__ = "0.25.2.dev0+g752a3a504"
