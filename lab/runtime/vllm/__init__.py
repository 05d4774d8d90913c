"""A stand-in for vLLM 0.25 in the lab: the command line, the start and its log lines, the rendezvous and the API.

No GPU, no weights, no model: answers are canned. What it keeps is what a deployment sees of the engine, taken from
vLLM's sources and from the logs of real ranks, so that what works against it is worth trying on a real pair.
Variables of its own (none is set on a real pair):

    LAB_FAULTS_URL      where faults are read; empty: nowhere. Default: the control host's hub as a lab machine sees it
    LAB_SYSFS           a folder in place of /sys; with it, GPU, /dev/infiniband and memlock are not looked at
    LAB_SPEED           factor on all its own pauses, default 1.0; tests use 0
"""

__version__ = "0.25.2.dev0+g752a3a504"
