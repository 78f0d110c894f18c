"""KServe's open inference protocol over gRPC: its messages and methods. Knows no connections.

Source: the KServe Open Inference Protocol, Triton's gRPC server, gRPC's health checking protocol.
"""
