"""The lab's runtime image, with a stand-in for vLLM, and the services that hand it out."""
