"""The "Layer Normalization" notebook's own code in plain Python. Run it to make notebook.json.

python tests/golden/notebook.py > tests/golden/notebook.json
"""

import json
import math
import random

random.seed(42)
VOCAB_SIZE, D_MODEL, D_FF, MAX_SEQ_LEN, NUM_HEADS, EPSILON = 6, 16, 64, 5, 2, 1e-5
D_K = D_MODEL // NUM_HEADS


def random_vector(size, scale=0.1):
    return [random.gauss(0, scale) for _ in range(size)]


def random_matrix(rows, cols, scale=0.1):
    return [[random.gauss(0, scale) for _ in range(cols)] for _ in range(rows)]


def add_vectors(v1, v2):
    return [a + b for a, b in zip(v1, v2, strict=True)]


def matmul(A, B):
    m, n = len(A), len(A[0])
    p = len(B[0])
    return [[sum(A[i][k] * B[k][j] for k in range(n)) for j in range(p)] for i in range(m)]


def transpose(A):
    return [[A[i][j] for i in range(len(A))] for j in range(len(A[0]))]


def softmax(vec):
    max_val = max(v for v in vec if v != float("-inf"))
    exp_vec = [math.exp(v - max_val) if v != float("-inf") else 0 for v in vec]
    sum_exp = sum(exp_vec)
    return [e / sum_exp for e in exp_vec]


def gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def compute_attention(Q, K, V):
    seq_len, d_k = len(Q), len(Q[0])
    scaled = [[s / math.sqrt(d_k) for s in row] for row in matmul(Q, transpose(K))]
    for i in range(seq_len):
        for j in range(seq_len):
            if j > i:
                scaled[i][j] = float("-inf")
    return matmul([softmax(row) for row in scaled], V)


def layer_norm(x, gamma, beta, epsilon):
    mean = sum(x) / len(x)
    variance = sum((xi - mean) ** 2 for xi in x) / len(x)
    std = math.sqrt(variance + epsilon)
    return [gamma[i] * (xi - mean) / std + beta[i] for i, xi in enumerate(x)], mean, variance


E_token = [random_vector(D_MODEL) for _ in range(VOCAB_SIZE)]
E_pos = [random_vector(D_MODEL) for _ in range(MAX_SEQ_LEN)]
tokens = [1, 3, 4, 5, 2]
X = [add_vectors(E_token[token], E_pos[i]) for i, token in enumerate(tokens)]
W_Q = [random_matrix(D_MODEL, D_K) for _ in range(NUM_HEADS)]
W_K = [random_matrix(D_MODEL, D_K) for _ in range(NUM_HEADS)]
W_V = [random_matrix(D_MODEL, D_K) for _ in range(NUM_HEADS)]
heads = [
    compute_attention(matmul(X, W_Q[h]), matmul(X, W_K[h]), matmul(X, W_V[h]))
    for h in range(NUM_HEADS)
]
concat_output = [heads[0][i] + heads[1][i] for i in range(len(tokens))]
W_O = random_matrix(D_MODEL, D_MODEL)
multi_head_output = matmul(concat_output, transpose(W_O))

W1, b1 = random_matrix(D_FF, D_MODEL), random_vector(D_FF)
W2, b2 = random_matrix(D_MODEL, D_FF), random_vector(D_MODEL)
hidden = [add_vectors(row, b1) for row in matmul(multi_head_output, transpose(W1))]
activated = [[gelu(h) for h in row] for row in hidden]
ffn_output = [add_vectors(row, b2) for row in matmul(activated, transpose(W2))]

residual = [add_vectors(multi_head_output[i], ffn_output[i]) for i in range(len(tokens))]
normalized = [layer_norm(row, [1.0] * D_MODEL, [0.0] * D_MODEL, EPSILON) for row in residual]

if __name__ == "__main__":
    golden = {
        "tokens": tokens,
        "layer_norm_output": [output for output, _, _ in normalized],
        "mean": [mean for _, mean, _ in normalized],
        "rstd": [1 / math.sqrt(variance + EPSILON) for _, _, variance in normalized],
    }
    print(json.dumps(golden, indent=1))
