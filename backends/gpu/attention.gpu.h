// The attention family: launches of its kernels, forward, backward and into the cache.
#pragma once

#include "samba/backends/gpu/attention_backward.gpu.h"
#include "samba/backends/gpu/attention_decode.gpu.h"
#include "samba/backends/gpu/attention_forward.gpu.h"
#include "samba/kernels/extended_gradients.h"

namespace samba::SAMBA_GPU {

namespace {

Attention attention_of(const AttentionShape& shape) {
  Attention g{};
  g.batch = shape.batch;
  g.queries = shape.queries;
  g.n_heads = shape.n_heads;
  g.n_kv_heads = shape.n_kv_heads;
  g.head_dim = shape.head_dim;
  g.first_position = shape.first_position;
  g.first_key = shape.first_key();
  g.keys = shape.keys();
  g.window = shape.window;
  g.has_softcap = shape.softcap.has_value();
  g.softcap = shape.softcap.value_or(0.0F);
  g.scale = elementary::rsqrt(static_cast<float>(shape.head_dim));
  return g;
}

Grid query_grid(const Attention& g) {
  return Grid{static_cast<unsigned>((g.queries + kQueries - 1) / kQueries), static_cast<unsigned>(g.n_heads),
              static_cast<unsigned>(g.batch)};
}

class AttentionGpu final : public AttentionKernels, public SoftcapGradients {
 public:
  explicit AttentionGpu(Context& context) : context_(context) {}

  void attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                         const AttentionStages& stages) override {
    const Workspace::Scope scope(context_.workspace());
    Attention g = attention_of(shape);
    g.q = q;
    g.view = view;
    g.context = context;
    g.stages = stages;
    if (view.key_codes != nullptr) {
      const Index rows = shape.batch * shape.queries * shape.n_heads;
      std::int16_t* codes = context_.workspace().codes(rows * shape.head_dim);
      std::int32_t* exponents = context_.workspace().ints(rows);
      launch_quantize(context_, rows, shape.head_dim, q, codes, exponents);
      g.q_codes = codes;
      g.q_exponents = exponents;
    }
    if (has_few_queries(g) && !wants_stages(stages)) return launch_decode(context_, g);
    const Index cells = g.batch * g.n_heads * g.queries * g.keys;
    zero(stages.exponentials, cells);  // masked keys
    zero(stages.weights, cells);
    launch_queries(g);
  }

  void attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                          const float* d_context, float* dq, float* dk, float* dv,
                          const AttentionBackwardStages& stages) override {
    const Index length = shape.queries, kv_width = shape.n_kv_heads * shape.head_dim;
    const Index rows = shape.batch * shape.n_heads * length;
    for (float* stage : {stages.d_weights, stages.d_masked, stages.d_scores}) zero(stage, rows * length);
    const Workspace::Scope scope(context_.workspace());
    float* maxima = context_.workspace().floats(rows);
    float* denominators = context_.workspace().floats(rows);
    Attention g = attention_of(shape);
    g.q = q;
    g.view = KeyValueView{k, v, length * kv_width, shape.head_dim, kv_width, 0, 0};
    g.stages.maximum = maxima;
    g.stages.denominators = denominators;
    launch_queries(g);
    launch_gradients({g, d_context, maxima, denominators, context_.workspace().floats(rows), dq, dk, dv, stages});
  }

  void store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys, float* values,
                         const KeyValueView& layout) override {
    for_each(context_, shape.batch * shape.queries * shape.n_kv_heads * shape.head_dim,
             StoreKeysValues{shape, k, v, keys, values, layout});
  }

 private:
  static bool wants_stages(const AttentionStages& s) {
    for (const float* stage : {s.scores, s.masked, s.maximum, s.exponentials, s.denominators, s.weights}) {
      if (stage != nullptr) return true;
    }
    return false;
  }
  void zero(float* stage, Index floats) {
    if (stage != nullptr) context_.memory().fill_zero(stage, static_cast<std::size_t>(floats) * sizeof(float));
  }
  void launch_queries(const Attention& g) {
    with_widths(g, [&](auto depths, auto one_leaf) {
      launch(context_, query_grid(g), kAttentionThreads, attention_queries<depths.value, one_leaf.value>, g);
    });
  }
  void launch_gradients(const AttentionGradient& r) {
    Grid keys = query_grid(r.g);
    keys.x = static_cast<unsigned>((r.g.keys + kKeys - 1) / kKeys);
    keys.y = static_cast<unsigned>(r.g.n_kv_heads);
    with_widths(r.g, [&](auto depths, auto one_leaf) {
      launch(context_, query_grid(r.g), kAttentionThreads, attention_query_gradients<depths.value, one_leaf.value>, r);
      launch(context_, keys, kAttentionThreads, attention_key_gradients<depths.value, one_leaf.value>, r);
    });
  }
  // body(depths that a block takes at once, whether products over head_dim have one leaf)
  template <class Body>
  static void with_widths(const Attention& g, Body&& body) {
    if (g.head_dim <= 64) return body(std::integral_constant<int, 64>{}, std::true_type{});
    if (g.head_dim <= kLeaf) return body(std::integral_constant<int, 128>{}, std::true_type{});
    body(std::integral_constant<int, 128>{}, std::false_type{});
  }

  Context& context_;
};

}  // namespace

std::unique_ptr<AttentionKernels> make_attention(Context& context) { return std::make_unique<AttentionGpu>(context); }

}  // namespace samba::SAMBA_GPU
