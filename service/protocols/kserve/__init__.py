"""KServe's open inference protocol (V2) with Triton's extensions.

Source: the KServe Open Inference Protocol and Triton's HTTP server. gRPC is not offered.
"""
