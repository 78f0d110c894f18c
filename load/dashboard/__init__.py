"""The Grafana dashboard, drawn from the answers of a real Prometheus."""
