"""Protocol: samples, inference and parameters as streams, in memory, over shared memory, over encrypted TCP."""
