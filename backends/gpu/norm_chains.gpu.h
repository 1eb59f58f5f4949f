// Norms whose sums are serial along a row: a block takes kChainRows rows, its threads bring a square of elements to
// shared memory, and one thread a row adds along it.
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kChainRows = 32;
inline constexpr int kChainColumns = 32;
inline constexpr int kChainPitch = kChainColumns + 1;
inline constexpr int kChainThreads = 128;

SAMBA_DEVICE float reciprocal_root(float sum, Index width, float eps) {
  return flush(elementary::rsqrt(flush(div(sum, static_cast<float>(width)) + eps)));
}

// Calls body(row, column of the row) for all elements of the rows of this block.
template <class Body>
SAMBA_DEVICE void for_block_elements(Index rows, Index width, Body&& body) {
  const Index first = static_cast<Index>(block_x()) * kChainRows;
  const Index count = (rows - first < kChainRows ? rows - first : kChainRows) * width;
  for (Index e = thread_index(); e < count; e += block_threads())
    body(static_cast<int>(e / width), first + e / width, e % width);
}

// The chains acc = F(fma(u, v, acc)) of the rows of this block, u and v by pair(row, column, u, v), flushed. The sum of
// row r of the block is returned to its thread r. `us`, `vs`: kChainRows * kChainPitch floats of shared memory. Of
// squares (v = u) a sum that is normal stays so: from there on nothing can be flushed.
enum class Chain { products, squares };
template <Chain kChain = Chain::products, class Pair>
SAMBA_DEVICE float chain_rows(Index rows, Index width, float* us, float* vs, Pair&& pair) {
  const Index first = static_cast<Index>(block_x()) * kChainRows;
  const int thread = static_cast<int>(thread_index());
  const int column = thread % kChainColumns;
  float acc = 0.0F;
  for (Index c = 0; c < width; c += kChainColumns) {
    for (int r = thread / kChainColumns; r < kChainRows; r += kChainThreads / kChainColumns) {
      if (first + r < rows && c + column < width) {
        pair(first + r, c + column, us[r * kChainPitch + column], vs[r * kChainPitch + column]);
      }
    }
    barrier();
    if (thread < kChainRows && first + thread < rows) {
      const int length = width - c < kChainColumns ? static_cast<int>(width - c) : kChainColumns;
      const float *u = us + thread * kChainPitch, *v = vs + thread * kChainPitch;
      if (kChain == Chain::squares && acc >= 0x1p-126F) {
        for (int j = 0; j < length; ++j) acc = fma(u[j], v[j], acc);
      } else {
        for (int j = 0; j < length; ++j) acc = flush(fma(u[j], v[j], acc));
      }
    }
    barrier();
  }
  return acc;
}

SAMBA_DEVICE bool owns_row(Index rows) {
  return thread_index() < kChainRows && static_cast<Index>(block_x()) * kChainRows + thread_index() < rows;
}

SAMBA_DEVICE Index owned_row() { return static_cast<Index>(block_x()) * kChainRows + thread_index(); }

SAMBA_KERNEL(kChainThreads)
rms_norm(Index rows, Index width, float eps, bool offset, const float* x, const float* weight, float* y, float* sumsq,
         float* rstd) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, roots, kChainRows);
  const float squares = chain_rows<Chain::squares>(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = flush(x[i * width + j]);
    v = u;
  });
  if (owns_row(rows)) {
    const float root = reciprocal_root(squares, width, eps);
    roots[thread_index()] = root;
    if (sumsq != nullptr) sumsq[owned_row()] = squares;
    if (rstd != nullptr) rstd[owned_row()] = root;
  }
  barrier();
  for_block_elements(rows, width, [&](int r, Index i, Index j) {
    const float scale = offset ? add(1.0F, weight[j]) : weight[j];
    y[i * width + j] = mul(scale, mul(x[i * width + j], roots[r]));
  });
}

SAMBA_KERNEL(kChainThreads)
block_layer_norm(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias, float* y,
                 float* sumsq) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, means, kChainRows);
  SAMBA_SHARED(float, roots, kChainRows);
  const Index first = static_cast<Index>(block_x()) * kChainRows;
  const float sum = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = flush(x[i * width + j]);
    v = 1.0F;
  });
  if (owns_row(rows)) means[thread_index()] = div(sum, static_cast<float>(width));
  barrier();
  const float squares = chain_rows<Chain::squares>(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = sub(x[i * width + j], means[i - first]);
    v = u;
  });
  if (owns_row(rows)) {
    roots[thread_index()] = reciprocal_root(squares, width, eps);
    if (sumsq != nullptr) sumsq[owned_row()] = squares;
  }
  barrier();
  for_block_elements(rows, width, [&](int r, Index i, Index j) {
    const float value = mul(weight[j], mul(sub(x[i * width + j], means[r]), roots[r]));
    y[i * width + j] = bias != nullptr ? add(value, bias[j]) : value;
  });
}

// The gradient of block_layer_norm (docs/spec-extensions.md section 1.3). weight_rows: the gradient's rows for the
// weight.
struct BlockLayerNormGradient {
  Index rows, width;
  float eps;
  const float *x, *weight, *dy;
  float *dx, *weight_rows;
};

SAMBA_KERNEL(kChainThreads)
block_layer_norm_backward(BlockLayerNormGradient g) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, means, kChainRows);
  SAMBA_SHARED(float, roots, kChainRows);
  SAMBA_SHARED(float, mean_gradients, kChainRows);
  SAMBA_SHARED(float, mean_products, kChainRows);
  const Index rows = g.rows, width = g.width, first = static_cast<Index>(block_x()) * kChainRows;
  const auto divisor = static_cast<float>(width);
  const auto gradient = [&](Index i, Index j) { return mul(g.dy[i * width + j], g.weight[j]); };
  const auto deviation = [&](Index i, Index j) { return sub(g.x[i * width + j], means[i - first]); };
  const auto normed = [&](Index i, Index j) { return mul(deviation(i, j), roots[i - first]); };
  const float sum = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = flush(g.x[i * width + j]);
    v = 1.0F;
  });
  if (owns_row(rows)) means[thread_index()] = div(sum, divisor);
  barrier();
  const float squares = chain_rows<Chain::squares>(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = deviation(i, j);
    v = u;
  });
  if (owns_row(rows)) roots[thread_index()] = reciprocal_root(squares, width, g.eps);
  const float gradients = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = gradient(i, j);
    v = 1.0F;
  });  // its barriers stand before anyone reads the roots
  const float products = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = gradient(i, j);
    v = normed(i, j);
  });
  if (owns_row(rows)) {
    mean_gradients[thread_index()] = div(gradients, divisor);
    mean_products[thread_index()] = div(products, divisor);
  }
  barrier();
  for_block_elements(rows, width, [&](int r, Index i, Index j) {
    const Index at = i * width + j;
    const float of_row = sub(sub(gradient(i, j), mean_gradients[r]), mul(normed(i, j), mean_products[r]));
    g.weight_rows[at] = mul(g.dy[at], normed(i, j));
    g.dx[at] = mul(roots[r], of_row);
  });
}

// The three backward forms of a norm by the root of the mean square. rows: the gradient's rows for the weight.
enum class RootNorm { rms, mamba3, mamba12 };

struct RootNormGradient {
  Index rows, width;
  float eps;
  const float *x, *weight, *sumsq;  // sumsq null: a chain over the row
  const float *dy, *residual_gradient;
  float *dx, *weight_rows, *dot;
};

template <RootNorm kForm>
SAMBA_DEVICE float root_norm_gradient(const RootNormGradient& g, float rstd, float c, Index i, Index j) {
  const float x = g.x[i * g.width + j];
  const float gradient = mul(g.dy[i * g.width + j], g.weight[j]);
  const auto width = static_cast<float>(g.width);
  switch (kForm) {
    case RootNorm::rms: {
      const float cube = mul(mul(rstd, rstd), rstd);
      const float dv = div(mul(-0.5F, mul(c, cube)), width);
      return add(mul(gradient, rstd), mul(dv, mul(2.0F, x)));
    }
    case RootNorm::mamba3: {
      const float correction = mul(mul(rstd, rstd), div(c, width));
      return add(mul(rstd, sub(gradient, mul(x, correction))), g.residual_gradient[i * g.width + j]);
    }
    case RootNorm::mamba12: {
      const float q = div(mul(mul(rstd, rstd), rstd), width);
      const float dv = sub(mul(rstd, gradient), mul(mul(q, x), c));
      return g.residual_gradient != nullptr ? add(g.residual_gradient[i * g.width + j], dv) : dv;
    }
  }
  return 0.0F;
}

template <RootNorm kForm>
SAMBA_KERNEL(kChainThreads)
root_norm_backward(RootNormGradient g) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, roots, kChainRows);
  SAMBA_SHARED(float, dots, kChainRows);
  float squares = 0.0F;
  if (g.sumsq == nullptr) {
    squares = chain_rows<Chain::squares>(g.rows, g.width, us, vs, [&](Index i, Index j, float& u, float& v) {
      u = flush(g.x[i * g.width + j]);
      v = u;
    });
  } else if (owns_row(g.rows)) {
    squares = g.sumsq[owned_row()];
  }
  const float c = chain_rows(g.rows, g.width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = mul(g.dy[i * g.width + j], g.weight[j]);
    v = flush(g.x[i * g.width + j]);
  });
  if (owns_row(g.rows)) {
    roots[thread_index()] = reciprocal_root(squares, g.width, g.eps);
    dots[thread_index()] = c;
    if (g.dot != nullptr) g.dot[owned_row()] = c;
  }
  barrier();
  for_block_elements(g.rows, g.width, [&](int r, Index i, Index j) {
    const Index at = i * g.width + j;
    g.weight_rows[at] = mul(g.dy[at], mul(g.x[at], roots[r]));
    g.dx[at] = root_norm_gradient<kForm>(g, roots[r], dots[r], i, j);
  });
}

}  // namespace

}  // namespace samba::SAMBA_GPU
