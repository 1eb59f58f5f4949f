// The core operations of spec 10 on host arrays, checked: for users of the library who want one operation, not a block.
// Arrays are float32 (ids: int32), row-major. A refused call is Error(value) or Error(type) and has changed nothing;
// non-finite input is refused as "non-finite <name> at flat index <i>".
#pragma once

#include <cstdint>
#include <optional>

#include "samba/core/array.h"
#include "samba/kernels/executor.h"
#include "samba/numerics/generator.h"

namespace samba::functional {

// y (m, n) = input (m, k) weight (n, k)^T                                                     spec 10 section 4
Array linear(Executor& executor, ConstArray input, ConstArray weight);

struct LinearGradients {
  Array input, weight;
};
LinearGradients linear_backward(Executor& executor, ConstArray upstream, ConstArray input, ConstArray weight);

// Two layers with a ReLU between them, of any sizes: x (m, k), weight1 (h, k), bias1 (h), weight2 (n, h), bias2 (n);
// logits (m, n) = relu(x weight1^T + bias1) weight2^T + bias2.                                 section 4.1
Array mlp_logits(Executor& executor, ConstArray x, ConstArray weight1, ConstArray bias1, ConstArray weight2,
                 ConstArray bias2);

// x (m, d), weight (d); `offset`: the scale is 1 + weight.                                    section 6
Array rms_norm(Executor& executor, ConstArray x, ConstArray weight, double eps, bool offset = false);

struct NormGradients {
  Array x;
  std::optional<Array> weight, bias;
};
NormGradients rms_norm_backward(Executor& executor, ConstArray upstream, ConstArray x, ConstArray weight, double eps);

// The free layer norm; weight and bias (d) may be absent.                                     section 7.2
Array layer_norm(Executor& executor, ConstArray x, const std::optional<ConstArray>& weight,
                 const std::optional<ConstArray>& bias, double eps);
// The gradient of the bias does not depend on its values: `bias` says whether there is one.
NormGradients layer_norm_backward(Executor& executor, ConstArray upstream, ConstArray x,
                                  const std::optional<ConstArray>& weight, bool bias, double eps);

// weight (vocab, d), ids (positions) -> (positions, d)                                        section 8
Array embedding(Executor& executor, ConstArray weight, ConstArray ids);

struct EmbeddingOptions {
  std::optional<Index> padding_id;  // positions with this id are skipped
  std::optional<ConstArray> carry;  // (vocab, d): start from these values instead of +0
};
Array embedding_backward(Executor& executor, ConstArray upstream, ConstArray ids, Index vocab,
                         const EmbeddingOptions& options = {});

// Dropout of the generator: x of any shape. Without `stream` the generator's next stream is taken.   section 9.4
struct Dropped {
  Array y;
  DropoutKey key;  // replays the mask
};
inline constexpr std::uint64_t kLargestDropoutOffset = 2147483647;
Dropped dropout(Executor& executor, Generator& generator, ConstArray x, double p, std::uint64_t offset = 0,
                std::optional<std::uint32_t> stream = std::nullopt);
Array dropout_backward(Executor& executor, const DropoutKey& key, ConstArray upstream);

// y = residual + dropped x; offset has 63 bits.
Dropped residual_dropout(Executor& executor, ConstArray x, ConstArray residual, double p, std::uint64_t seed,
                         std::uint32_t stream, std::uint64_t offset = 0);
struct ResidualGradients {
  Array x, residual;
};
ResidualGradients residual_dropout_backward(Executor& executor, const DropoutKey& key, ConstArray upstream);

}  // namespace samba::functional
