"""KServe's open inference protocol (V2) with Triton's extensions: the same straight line under other names.

Source: the KServe Open Inference Protocol and Triton's HTTP server. gRPC is not offered.
"""
