"""Model how long a launch takes on an MI355X: any launch that the emulator can run.

The operator's own shapes: ``python -m bench.timing_model predict``. A code object of any origin, with its grid, block
and kernarg segment, and buffers at the addresses that the segment names (see ``prediction.predict``)::

    from bench.timing_model import predict
    from indexer_rt.code_object import CodeObject
    from indexer_rt.emu import Buffer
    from indexer_rt.launch import Launch

    kernel = CodeObject.read("other.hsaco").kernels["copy"]  # copy(const float* x, float* y)
    x, y = np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
    arguments = struct.pack("<QQ", 1 << 33, 1 << 34)
    launch = Launch(kernel, grid=(4096, 1, 1), block=(256, 1, 1), lds_bytes=0, kernarg=arguments)
    buffers = [Buffer("x", 1 << 33, x.view(np.uint8)), Buffer("y", 1 << 34, y.view(np.uint8), writable=True)]
    print(predict(launch, buffers).time_us, predict(launch, buffers, warm=False).time_us)
"""

from .prediction import Prediction, predict

__all__ = ["Prediction", "predict"]
