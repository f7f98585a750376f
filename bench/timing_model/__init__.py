"""Model how long a launch takes on an MI355X: any launch that the emulator can run.

The operator's own shapes: ``python -m bench.timing_model predict``. A code object of any origin, with its grid, block
and kernarg segment, and buffers at the addresses that the segment names (see ``prediction.predict``)::

    kernel = CodeObject.read("other.hsaco").kernels["name"]
    arguments = struct.pack("<QQ", 1 << 33, 1 << 34)
    launch = Launch(kernel, grid=(512, 1, 1), block=(256, 1, 1), lds_bytes=0, kernarg=arguments)
    buffers = [Buffer("x", 1 << 33, x.view(np.uint8)), Buffer("y", 1 << 34, y.view(np.uint8), writable=True)]
    print(predict(launch, buffers).time_us)
"""

from .prediction import Prediction, predict

__all__ = ["Prediction", "predict"]
