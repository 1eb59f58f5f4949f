// The families of kernels of one target, each made by its own file NAME.gpu.h.
#pragma once

#include <memory>

#include "samba/backends/gpu/platform.h"
#include "samba/kernels/executor.h"

namespace samba::SAMBA_GPU {

class Blas;

std::unique_ptr<AttentionKernels> make_attention(Context& context);
std::unique_ptr<ConvKernels> make_conv(Context& context);
std::unique_ptr<ElementwiseKernels> make_elementwise(Context& context);
std::unique_ptr<EmbeddingKernels> make_embedding(Context& context);
std::unique_ptr<Fixed15Kernels> make_fixed15(Context& context);
// `blas`: what computes the products of the numeric mode fast; null: the kernels do.
std::unique_ptr<LinearKernels> make_linear(Context& context, const Blas* blas);
std::unique_ptr<LossKernels> make_loss(Context& context);
std::unique_ptr<Mamba1Kernels> make_mamba1(Context& context);
std::unique_ptr<Mamba2Kernels> make_mamba2(Context& context);
std::unique_ptr<Mamba3Kernels> make_mamba3(Context& context);
std::unique_ptr<NormKernels> make_norm(Context& context);
std::unique_ptr<OptimizerKernels> make_optimizer(Context& context);
std::unique_ptr<RandomKernels> make_random(Context& context);
std::unique_ptr<RopeKernels> make_rope(Context& context);

// Folds of the matrix product for the other families (folds.gpu.h). out[w] = sum over rows of v[row, w]; *out = dot(a,
// b) in device memory.
void launch_column_sum(Context& context, Index rows, Index width, const float* v, float* out);
void launch_dot(Context& context, Index n, const float* a, const float* b, float* out);

// *first (device memory) = the index of the first of n values that is not finite, -1 when all are (elementwise.gpu.h).
void launch_search(Context& context, Index n, const float* x, std::int64_t* first);

// Products for the other families (linear.gpu.h): y[m, n] = x[m, k] w[n, k]^T.
void launch_nt(Context& context, Index m, Index n, Index k, const float* x, const float* w, float* y);

// Rows to codes of numeric_profile fixed15_v1 (fixed15.gpu.h), for attention.
void launch_quantize(Context& context, Index rows, Index k, const float* x, std::int16_t* codes,
                     std::int32_t* exponents);

// Packed weights (packed.gpu.h), for the linear and the embedding family.
std::unique_ptr<PreparedWeight> prepare_packed(Context& context, const ConstPackedWeight& packed);
void refresh_packed(Context& context, PreparedWeight& prepared, const ConstPackedWeight& packed);
void gather_prepared(Context& context, const PreparedWeight& weight, Index count, const std::int32_t* rows,
                     float* values);
Weight stored_packed(Context& context, const PreparedWeight& weight);
void linear_packed(Context& context, const PreparedWeight& weight, Index m, const float* x, float* y);
void expand_packed(Context& context, const ConstPackedWeight& packed, float* values);
// y[t, :] = F(the expanded row ids[t])
void gather_packed(Context& context, Index positions, Index width, const std::int32_t* ids,
                   const ConstPackedWeight& packed, float* y);

}  // namespace samba::SAMBA_GPU
