// A model in a GGUF file: architectures llama, qwen2, qwen3, gemma, mamba and mamba2 (docs/formats/gguf.md).
#pragma once

#include "samba/convert/open_model.h"

namespace samba {

// Matrices that are no float32 are given as views of rows of blocks, which a stack multiplies with where they lie in
// the mapped file; loaded, they are float32. What cannot be represented is refused by its key or tensor.
OpenModel open_gguf(const Path& path);

// The A_log whose exponential, as the Mamba blocks compute it, is `rate`; where float32 has none, the one that comes
// nearest. `rate` > 0.
float log_of_rate(float rate);

}  // namespace samba
