"""What operators observe: counters, history, metrics, logs."""
