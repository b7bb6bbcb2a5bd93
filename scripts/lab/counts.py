"""What the model counts, asked for in the guest."""

import json
import os
import time


def counts():
    """What the model counts on both ports, as the host tells it."""
    with open("/host/ask.new", "w") as ask:
        ask.write("counts\n")
    os.rename("/host/ask.new", "/host/ask")
    while os.path.exists("/host/ask"):
        time.sleep(0.02)
    with open("/host/counts.json") as told:
        return json.load(told)
