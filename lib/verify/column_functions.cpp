// The calls of lanes of plain functions, which every lane may make (test/golden/columns/README.md section 3).
#include "samba/blocks/functional.h"
#include "samba/numerics/fixed15.h"
#include "samba/numerics/fold.h"
#include "samba/numerics/generator.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/accumulate.h"
#include "samba/train/clip.h"
#include "samba/verify/column_lane.h"
#include "samba/verify/schema.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

Array one_float(float value) { return Array::from_floats({1}, std::span(&value, 1)); }

// Rows of a norm's x: whatever its shape, flattened to rows of `width`.
Index rows_of(const Array& x, Index width) { return x.size() / width; }

void call_gemm(Lane& lane, const json& call) {
  const Layout layout = layout_of(call.at("layout"));
  const Array& b = lane.value(call.at("b"));
  Array a = copy_of(lane.value(call.at("a")));
  if (call.contains("rows")) {  // of the product: the columns of a transposed a
    a = slice(a, layout == Layout::tn ? 1 : 0, call["rows"].at(0).get<Index>(), call["rows"].at(1).get<Index>());
  }
  const Index m = a.shape()[layout == Layout::tn ? 1 : 0];
  const Index k = a.shape()[layout == Layout::tn ? 0 : 1];
  const Index n = b.shape()[layout == Layout::nt ? 0 : 1];
  Executor& executor = lane.run().executor;
  DeviceFloats c(executor, m * n);
  executor.linear().gemm(layout, m, n, k, DeviceFloats(executor, a), DeviceFloats(executor, b), c);
  Array product = c.array({m, n});
  lane.check_same_as(call, product);
  lane.add_if_named(call, "c", std::move(product));
}

void call_linear(Lane& lane, const json& call) {
  Executor& executor = lane.run().executor;
  const Array& a = lane.value(call.at("a"));
  const Array& weight = lane.value(call.at("weight"));
  const Index m = a.shape()[0], k = a.shape()[1], n = weight.shape()[0];
  DeviceFloats input(executor, a);
  DeviceFloats w(executor, weight);
  if (call.contains("c")) {
    DeviceFloats c(executor, m * n);
    executor.linear().linear(*executor.linear().prepare(n, k, w), m, input, c);
    lane.add(call["c"], c.array({m, n}));
  }
  if (!call.contains("dc")) return;
  DeviceFloats dc(executor, lane.value(call["dc"]));
  DeviceFloats da(executor, m * k);
  DeviceFloats dw(executor, n * k);
  executor.linear().gemm(Layout::nn, m, k, n, dc, w, da);
  executor.linear().gemm(Layout::tn, n, k, m, dc, input, dw);
  lane.add(call.at("grad_a"), da.array({m, k}));
  lane.add(call.at("grad_weight"), dw.array({n, k}));
}

void call_rms_norm(Lane& lane, const json& call) {
  Executor& executor = lane.run().executor;
  const Array& x = lane.value(call.at("x"));
  const Index width = lane.value(call.at("weight")).size(), rows = rows_of(x, width);
  const auto eps = static_cast<float>(number_of(call.at("eps")));
  DeviceFloats input(executor, x);
  DeviceFloats weight(executor, lane.value(call["weight"]));
  DeviceFloats out(executor, x.size());
  if (call.contains("y")) {
    executor.norm().rms_norm_forward(rows, width, eps, false, input, weight, out, nullptr, nullptr);
    lane.add(call["y"], out.array(x.shape()));
  }
  if (!call.contains("dy")) return;
  DeviceFloats d_weight(executor, width);
  executor.norm().rms_norm_backward(rows, width, eps, input, weight, DeviceFloats(executor, lane.value(call["dy"])),
                                    out, d_weight, nullptr);
  lane.add(call.at("grad_x"), out.array(x.shape()));
  lane.add(call.at("grad_weight"), d_weight.array({width}));
}

void call_layer_norm(Lane& lane, const json& call) {
  Executor& executor = lane.run().executor;
  const Array& x = lane.value(call.at("x"));
  const Index width = call.at("normalized").get<Index>(), rows = rows_of(x, width);
  const auto eps = static_cast<float>(number_of(call.at("eps")));
  std::optional<DeviceFloats> weight, bias, d_weight, d_bias;
  if (call.contains("weight")) weight.emplace(executor, lane.value(call["weight"]).view());
  if (call.contains("bias")) bias.emplace(executor, lane.value(call["bias"]).view());
  if (call.contains("grad_weight")) d_weight.emplace(executor, width);
  if (call.contains("grad_bias")) d_bias.emplace(executor, width);
  const auto pointer = [](std::optional<DeviceFloats>& floats) -> float* {
    return floats ? static_cast<float*>(*floats) : nullptr;
  };
  DeviceFloats input(executor, x);
  DeviceFloats out(executor, x.size());
  if (call.contains("y")) {
    executor.norm().layer_norm_forward(rows, width, eps, input, pointer(weight), pointer(bias), out);
    lane.add(call["y"], out.array(x.shape()));
  }
  if (!call.contains("dy")) return;
  executor.norm().layer_norm_backward(rows, width, eps, input, pointer(weight),
                                      DeviceFloats(executor, lane.value(call["dy"])), out, pointer(d_weight),
                                      pointer(d_bias));
  lane.add_if_named(call, "grad_x", out.array(x.shape()));
  if (d_weight) lane.add(call["grad_weight"], d_weight->array({width}));
  if (d_bias) lane.add(call["grad_bias"], d_bias->array({width}));
}

void call_embedding(Lane& lane, const json& call) {
  Executor& executor = lane.run().executor;
  const Array& weight = lane.value(call.at("weight"));
  const Array& ids = lane.value(call.at("ids"));
  const Index vocab = weight.shape()[0], width = weight.shape()[1], positions = ids.size();
  DeviceInts tokens(executor, ids);
  if (call.contains("y")) {
    DeviceFloats y(executor, positions * width);
    executor.embedding().embedding_forward(positions, width, tokens, DeviceFloats(executor, weight), y);
    lane.add(call["y"], y.array({positions, width}));
  }
  if (!call.contains("dy")) return;
  DeviceFloats d_weight(executor, vocab * width);
  executor.embedding().embedding_backward(positions, vocab, width, tokens,
                                          DeviceFloats(executor, lane.value(call["dy"])), false,
                                          call.value("padding_idx", Index{-1}), d_weight);
  lane.add(call.at("grad_weight"), d_weight.array({vocab, width}));
}

void call_cross_entropy(Lane& lane, const json& call) {
  const Array& logits = lane.value(call.at("logits"));
  const Array& targets = lane.value(call.at("targets"));
  CrossEntropyResult result =
      cross_entropy(lane.run().executor, logits, reshaped(targets, {targets.size()}), cross_entropy_options(call));
  lane.add_if_named(call, "row_loss", std::move(result.row_loss));
  if (call.contains("loss")) lane.add(call["loss"], one_float(result.loss.value()));
  if (call.contains("grad")) lane.add(call["grad"], std::move(result.gradient.value()));
}

void call_chunked_head(Lane& lane, const json& call) {
  ChunkedHeadResult result = chunked_lm_head_loss(lane.run().executor, lane.value(call.at("hidden")),
                                                  lane.value(call.at("weight")), lane.value(call.at("targets")));
  lane.add(call.at("loss"), one_float(result.loss));
  lane.add(call.at("grad_hidden"), std::move(result.d_hidden));
  lane.add(call.at("grad_weight"), std::move(result.d_weight));
}

void call_accumulate(Lane& lane, const json& call) {
  const Array& parts = lane.value(call.at("parts"));
  const Index pieces = call.value("pieces", parts.shape()[0]);
  lane.add(call.at("sum"), accumulate(lane.run().executor, slice(parts, 0, 0, pieces)));
}

void call_aligned(Lane& lane, const json& call) {
  Array aligned(DType::int64, {static_cast<Index>(call.at("tokens").size())});
  for (std::size_t i = 0; i < call["tokens"].size(); ++i) {
    const bool truth = accumulation_is_aligned(call["tokens"][i].get<Index>(), call.at("pieces").at(i).get<Index>());
    aligned.values<std::int64_t>()[i] = truth ? 1 : 0;
  }
  lane.add(call.at("aligned"), std::move(aligned));
}

// Tensors of a list laid end to end, and back.
Array flat_of(Lane& lane, const json& names, std::vector<Index>* sizes = nullptr) {
  std::vector<Array> parts;
  for (const json& name : names) {
    const Array& part = lane.value(name);
    parts.push_back(reshaped(part, {part.size()}));
    if (sizes != nullptr) sizes->push_back(part.size());
  }
  return join(parts, 0);
}

void add_parts(Lane& lane, const json& names, const Array& flat, const json& like) {
  Index offset = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Array& shaped = lane.value(like.at(i));
    lane.add(names[i], reshaped(slice(flat, 0, offset, offset + shaped.size()), shaped.shape()));
    offset += shaped.size();
  }
}

void call_clip(Lane& lane, const json& call) {
  std::vector<Index> sizes;
  const Array given = flat_of(lane, call.at("grads"), &sizes);
  DeviceFloats gradient(lane.run().executor, given);
  const ClipReport clip = clip_grad_norm(lane.run().executor, sizes, number_of(call.at("max_norm")), gradient);
  lane.add(call.at("total_norm"), one_float(clip.total_norm));
  add_parts(lane, call.at("out"), gradient.array(given.shape()), call["grads"]);
}

void optimizer_step(Lane& lane, Optimizer& optimizer, DeviceFloats& parameters, const json& step, const json& names) {
  check_keys(step, "grads? microbatches? tokens? total_norm? clipped?", "steps");
  Executor& executor = lane.run().executor;
  StepReport report;
  std::vector<DeviceFloats> parts;
  if (step.contains("microbatches")) {
    std::vector<float*> pointers;
    parts.reserve(step["microbatches"].size());
    for (const json& grads : step["microbatches"]) {
      parts.emplace_back(executor, flat_of(lane, grads));
      pointers.push_back(parts.back());
    }
    report = optimizer.step_accumulated(parameters, pointers, step.at("tokens").get<Index>());
  } else {
    parts.emplace_back(executor, flat_of(lane, step.at("grads")));
    report = optimizer.step(parameters, parts.back());
  }
  if (step.contains("total_norm")) lane.add(step["total_norm"], one_float(report.clip.value().total_norm));
  if (step.contains("clipped")) add_parts(lane, step["clipped"], parts.front().array({optimizer.total()}), names);
}

void call_optimizer(Lane& lane, const json& call) {
  json options = call.at("options");
  options["max_norm"] = call.at("max_norm");
  Executor& executor = lane.run().executor;
  std::vector<Index> sizes;
  DeviceFloats parameters(executor, flat_of(lane, call.at("params"), &sizes));
  Optimizer optimizer(executor, sizes, optimizer_settings(options), optional_schedule(options));
  for (const json& step : call.at("steps")) optimizer_step(lane, optimizer, parameters, step, call["params"]);
  const Shape flat = {optimizer.total()};
  const auto host = [&](const float* device) {
    Array array = Array::zeros(flat);
    executor.memory().copy_to_host(array.data(), device, array.byte_size());
    return array;
  };
  add_parts(lane, call.at("out"), parameters.array(flat), call["params"]);
  if (call.contains("exp_avg")) lane.add(call["exp_avg"], host(optimizer.exp_avg()));
  if (call.contains("exp_avg_sq")) lane.add(call["exp_avg_sq"], host(optimizer.exp_avg_sq()));
}

void call_schedule(Lane& lane, const json& call) {
  const Schedule schedule = schedule_from_json(call.at("options"));
  Array rates = Array::zeros({call.at("steps").get<Index>()});
  for (std::size_t i = 0; i < rates.floats().size(); ++i) {
    rates.floats()[i] = schedule.at(static_cast<Index>(i + 1));
  }
  lane.add(call.at("lr"), std::move(rates));
}

void call_residual_dropout(Lane& lane, const json& call) {
  Executor& executor = lane.run().executor;
  const Array& x = lane.value(call.at("x"));
  const DropoutScale scale = residual_dropout_scale(number_of(call.at("p")));
  const DropoutKey key = {call.at("seed").get<std::uint64_t>(), call.value("stream", std::uint32_t{0}),
                          call.value("offset", std::uint64_t{0}), scale.p, scale.scale};
  DeviceFloats out(executor, x.size());
  executor.random().residual_dropout(key, x.size(), DeviceFloats(executor, x),
                                     DeviceFloats(executor, lane.value(call.at("residual"))), out);
  lane.add(call.at("y"), out.array(x.shape()));
  if (!call.contains("grad_output")) return;
  const Array& upstream = lane.value(call["grad_output"]);
  executor.random().dropout(key, x.size(), DeviceFloats(executor, upstream), out);
  lane.add(call.at("grad_x"), out.array(x.shape()));
  lane.add(call.at("grad_residual"), copy_of(upstream));
}

void call_mlp_logits(Lane& lane, const json& call) {
  const auto array = [&](const char* name) -> const Array& { return lane.value(call.at(name)); };
  lane.add(call.at("logits"), functional::mlp_logits(lane.run().executor, array("x"), array("weight1"), array("bias1"),
                                                     array("weight2"), array("bias2")));
}

// The codes as planes of 8 bits: code = 128 * hi + lo.
void call_int15_quantize(Lane& lane, const json& call) {
  const Array& x = lane.value(call.at("x"));
  const Index rows = x.shape().at(0), k = x.shape().at(1);
  Executor& executor = lane.run().executor;
  DeviceArray<std::int16_t> device_codes(executor.memory(), rows * k);
  DeviceArray<std::int32_t> device_exponents(executor.memory(), rows);
  executor.fixed15().quantize(rows, k, DeviceFloats(executor, x), device_codes.data(), device_exponents.data());
  std::vector<std::int16_t> codes(static_cast<std::size_t>(rows * k));
  device_codes.download(codes.data());
  Array high(DType::int8, x.shape()), low(DType::int8, x.shape()), exponents(DType::int32, {rows});
  device_exponents.download(exponents.values<std::int32_t>().data());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    high.values<std::int8_t>()[i] = static_cast<std::int8_t>(codes[i] >> 7);
    low.values<std::int8_t>()[i] = static_cast<std::int8_t>(codes[i] & 127);
  }
  lane.add(call.at("hi"), std::move(high));
  lane.add(call.at("lo"), std::move(low));
  lane.add(call.at("exponents"), std::move(exponents));
}

void call_int15_gemm(Lane& lane, const json& call) {
  const Array& a = lane.value(call.at("a"));
  const Array& b = lane.value(call.at("b"));
  const Index m = a.shape().at(0), n = b.shape().at(0), k = a.shape().at(1);
  Executor& executor = lane.run().executor;
  const auto prepared = executor.fixed15().prepare(n, k, DeviceFloats(executor, b));
  DeviceFloats c(executor, m * n);
  executor.fixed15().linear(*prepared, m, DeviceFloats(executor, a), c);
  lane.add(call.at("c"), c.array({m, n}));
}

void call_int15_expand(Lane& lane, const json& call) {
  const Array& high = lane.value(call.at("hi"));
  const Array& low = lane.value(call.at("lo"));
  const Array& exponents = lane.value(call.at("exponents"));
  const Index k = high.shape().at(1);
  Array y = Array::zeros(high.shape());
  for (Index i = 0; i < y.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const int code = 128 * high.values<std::int8_t>()[at] + low.values<std::int8_t>()[at];
    const float scale = power_of_two(exponents.values<std::int32_t>()[static_cast<std::size_t>(i / k)]);
    y.floats()[at] = mul(static_cast<float>(code), scale);
  }
  lane.add(call.at("y"), std::move(y));
}

void call_lowbit_pack(Lane& lane, const json& call) {
  const Array& w = lane.value(call.at("w"));
  const PackedWeight narrow = pack_one(w, WeightFormat::bfloat16).packed();
  lane.add(call.at("bits"), copy_of(narrow.bits()));
  lane.add(call.at("bf16_expanded"), expand(narrow));
  const PackedWeight codes = pack_one(w, WeightFormat::int8).packed();
  lane.add(call.at("codes"), copy_of(codes.codes()));
  lane.add(call.at("exponents"), copy_of(codes.exponents()));
  lane.add(call.at("int8_expanded"), expand(codes));
}

void call_copy(Lane& lane, const json& call) { lane.add(call.at("y"), copy_of(lane.value(call.at("x")))); }

using FunctionCall = void (*)(Lane&, const json&);

const std::map<std::string, FunctionCall> kFunctions = {
    {"gemm", call_gemm},
    {"linear", call_linear},
    {"rms_norm", call_rms_norm},
    {"layer_norm_functional", call_layer_norm},
    {"embedding", call_embedding},
    {"cross_entropy", call_cross_entropy},
    {"chunked_lm_head_loss", call_chunked_head},
    {"accumulate", call_accumulate},
    {"accumulation_is_aligned", call_aligned},
    {"clip_grad_norm", call_clip},
    {"optimizer", call_optimizer},
    {"schedule", call_schedule},
    {"residual_dropout", call_residual_dropout},
    {"mlp_logits", call_mlp_logits},
    {"int15_quantize", call_int15_quantize},
    {"int15_gemm", call_int15_gemm},
    {"int15_expand", call_int15_expand},
    {"lowbit_pack", call_lowbit_pack},
    {"copy", call_copy},
};

}  // namespace

bool call_function(Lane& lane, const json& call) {
  const auto found = kFunctions.find(call.at("op").get<std::string>());
  if (found == kFunctions.end()) return false;
  found->second(lane, call);
  return true;
}

}  // namespace samba::verify
