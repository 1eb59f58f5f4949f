#!/usr/bin/env python3
"""Writes down what the real TensorBoard reads from the log of test/event_file_test.cpp.

    SAMBA_EVENT_FILE=/tmp/log/events.out.tfevents.1 build/test/event_file_test "[.write]"
    pip install tensorboard; python3 scripts/record_tensorboard.py /tmp/log/events.out.tfevents.1 > test/tensorboard/read.json
"""
import hashlib
import json
import sys

import tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

path = sys.argv[1]
log = EventAccumulator(path)
log.Reload()
tags = log.Tags()
print(json.dumps({
    "tensorboard": tensorboard.__version__,
    "sha256": hashlib.sha256(open(path, "rb").read()).hexdigest(),
    "file_version": log.file_version,
    "scalars": {tag: [[e.step, e.value] for e in log.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {tag: [[e.step, e.tensor_proto.string_val[0].decode()] for e in log.Tensors(tag)]
              for tag in tags["tensors"]},
}, indent=1, sort_keys=True))
