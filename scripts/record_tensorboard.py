#!/usr/bin/env python3
"""Writes down what the real TensorBoard reads from the log of test/event_file_test.cpp.

    SAMBA_EVENT_FILE=/tmp/log/events.out.tfevents.1 build/test/event_file_test "[.write]"
    pip install tensorboard; python3 scripts/record_tensorboard.py /tmp/log/events.out.tfevents.1 > test/tensorboard/read.json
"""
import hashlib
import json
import sys

import tensorboard
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.util import tensor_util

path = sys.argv[1]
log = event_accumulator.EventAccumulator(path)  # what scripts use
log.Reload()
shown = plugin_event_accumulator.EventAccumulator(path)  # what the page shows: everything as tensors
shown.Reload()
tensors = {tag: [[e.step, tensor_util.make_ndarray(e.tensor_proto)] for e in shown.Tensors(tag)]
           for tag in shown.Tags()["tensors"]}
print(json.dumps({
    "tensorboard": tensorboard.__version__,
    "sha256": hashlib.sha256(open(path, "rb").read()).hexdigest(),
    "file_version": log.file_version,
    "scalars": {tag: [[e.step, e.value] for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]},
    "shown": {tag: [[step, float(value)] for step, value in values] for tag, values in tensors.items()
              if values[0][1].dtype != object},
    "texts": {tag: [[step, value.flatten()[0].decode()] for step, value in values] for tag, values in tensors.items()
              if values[0][1].dtype == object},
}, indent=1, sort_keys=True))
