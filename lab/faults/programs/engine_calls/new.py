"""Asks for an engine as TensorRT 11 is asked."""

import tensorrt as trt


def configure(config):
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)


def infer(context, bindings, stream):
    return context.execute_async_v3(stream)
