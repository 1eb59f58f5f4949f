// The kinds of test/golden/core: elementary functions, matrix product, norms, embedding, accumulation (spec 10).
#include <map>

#include "samba/numerics/fold.h"
#include "samba/train/accumulate.h"
#include "samba/verify/kinds.h"

namespace samba::verify {
namespace {

const std::map<std::string, UnaryFunction> kUnary = {
    {"exp", UnaryFunction::exp},       {"log", UnaryFunction::log},
    {"log1p", UnaryFunction::log1p},   {"sqrt", UnaryFunction::sqrt},
    {"rsqrt", UnaryFunction::rsqrt},   {"sigmoid", UnaryFunction::sigmoid},
    {"silu", UnaryFunction::silu},     {"softplus", UnaryFunction::softplus},
    {"sin", UnaryFunction::sin},       {"cos", UnaryFunction::cos},
    {"tanh", UnaryFunction::tanh},     {"erf", UnaryFunction::erf},
    {"gelu_erf", UnaryFunction::gelu}, {"gelu_tanh", UnaryFunction::gelu_tanh}};

const std::map<std::string, BinaryFunction> kBinary = {{"add", BinaryFunction::add},
                                                       {"mul", BinaryFunction::mul},
                                                       {"div", BinaryFunction::div},
                                                       {"max", BinaryFunction::max},
                                                       {"pow", BinaryFunction::pow}};

float option(const RunContext& run, const char* name) {
  return static_cast<float>(number_of(run.body().at("options").at(name)));
}

// The pointer of an optional weight.
float* pointer_or_null(std::optional<DeviceFloats>& floats) { return floats ? static_cast<float*>(*floats) : nullptr; }

}  // namespace

void run_math(RunContext& run) {
  for (const json& entry : run.body().at("functions")) {
    const std::string function = entry.at("function");
    const Array& first = run.tensor(entry.contains("x") ? entry["x"] : entry.at("a"));
    const Index n = first.size();
    DeviceFloats a(run.executor, first);
    DeviceFloats out(run.executor, n);
    ElementwiseKernels& kernels = run.executor.elementwise();
    if (function == "clamp") {
      const json& bounds = entry.at("options");
      kernels.clamp(n, a, static_cast<float>(number_of(bounds.at("low"))),
                    static_cast<float>(number_of(bounds.at("high"))), out);
    } else if (const auto unary = kUnary.find(function); unary != kUnary.end()) {
      kernels.unary(unary->second, n, a, out);
    } else if (const auto binary = kBinary.find(function); binary != kBinary.end()) {
      DeviceFloats b(run.executor, run.tensor(entry.at("b")));
      kernels.binary(binary->second, n, a, b, out);
    } else {
      refuse_corrupt("case", "unknown function '" + function + "'");
    }
    run.expect(entry.at("out"), out.array(first.shape()));
  }
}

void run_gemm(RunContext& run) {
  const Index m = run.dim("m");
  const Index n = run.dim("n");
  const Index k = run.dim("k");
  const Layout layout = layout_of(run.body().at("options").at("layout"));
  DeviceFloats a(run.executor, run.tensor("in.a"));
  DeviceFloats b(run.executor, run.tensor("in.b"));
  DeviceFloats c(run.executor, m * n);
  run.executor.linear().gemm(layout, m, n, k, a, b, c);
  run.expect("out.c", c.array({m, n}));
  if (layout != Layout::nt) return;
  const auto weight = run.executor.linear().prepare(n, k, b);
  run.executor.linear().linear(*weight, m, a, c);
  run.check.array("out.c of the prepared weight", c.array({m, n}), run.tensor("out.c"));
}

void run_linear(RunContext& run) {
  const Index m = run.dim("m");
  const Index n = run.dim("n");
  const Index k = run.dim("k");
  LinearKernels& kernels = run.executor.linear();
  DeviceFloats a(run.executor, run.tensor("in.a"));
  DeviceFloats w(run.executor, run.tensor("w.weight"));
  DeviceFloats dc(run.executor, run.tensor("in.dc"));
  DeviceFloats c(run.executor, m * n);
  DeviceFloats da(run.executor, m * k);
  DeviceFloats dw(run.executor, n * k);
  const auto prepared = kernels.prepare(n, k, w);
  kernels.linear(*prepared, m, a, c);
  run.expect("out.c", c.array({m, n}));
  kernels.gemm(Layout::nn, m, k, n, dc, w, da);
  run.expect("grad.a", da.array({m, k}));
  kernels.gemm(Layout::tn, n, k, m, dc, a, dw);
  run.expect("grad.weight", dw.array({n, k}));
}

void run_rms_norm(RunContext& run) {
  const Index rows = run.dim("m");
  const Index width = run.dim("d");
  const float eps = option(run, "eps");
  DeviceFloats x(run.executor, run.tensor("in.x"));
  DeviceFloats w(run.executor, run.tensor("w.weight"));
  DeviceFloats dy(run.executor, run.tensor("in.dy"));
  DeviceFloats y(run.executor, rows * width);
  DeviceFloats sumsq(run.executor, rows);
  DeviceFloats rstd(run.executor, rows);
  DeviceFloats dx(run.executor, rows * width);
  DeviceFloats dw(run.executor, width);
  NormKernels& kernels = run.executor.norm();
  kernels.rms_norm_forward(rows, width, eps, false, x, w, y, sumsq, rstd);
  run.expect_if_there("stage.sumsq", sumsq.array({rows}));
  run.expect_if_there("stage.rstd", rstd.array({rows}));
  run.expect("out.y", y.array({rows, width}));
  kernels.rms_norm_backward(rows, width, eps, x, w, dy, dx, dw, nullptr);
  run.expect("grad.x", dx.array({rows, width}));
  run.expect("grad.weight", dw.array({width}));
}

void run_layer_norm_block(RunContext& run) {
  const Index rows = run.dim("m");
  const Index width = run.dim("d");
  DeviceFloats x(run.executor, run.tensor("in.x"));
  DeviceFloats w(run.executor, run.tensor("w.weight"));
  std::optional<DeviceFloats> bias;
  if (const Array* given = run.test.tensors.find("w.bias")) bias.emplace(run.executor, given->view());
  DeviceFloats y(run.executor, rows * width);
  run.executor.norm().layer_norm_block(rows, width, option(run, "eps"), x, w, pointer_or_null(bias), y, nullptr);
  run.expect("out.y", y.array({rows, width}));
}

void run_layer_norm_functional(RunContext& run) {
  const Index rows = run.dim("m");
  const Index width = run.dim("d");
  const float eps = option(run, "eps");
  DeviceFloats x(run.executor, run.tensor("in.x"));
  DeviceFloats dy(run.executor, run.tensor("in.dy"));
  DeviceFloats y(run.executor, rows * width);
  DeviceFloats dx(run.executor, rows * width);
  std::optional<DeviceFloats> weight, bias, d_weight, d_bias;
  if (const Array* given = run.test.tensors.find("w.weight")) {
    weight.emplace(run.executor, given->view());
    d_weight.emplace(run.executor, width);
  }
  if (const Array* given = run.test.tensors.find("w.bias")) {
    bias.emplace(run.executor, given->view());
    d_bias.emplace(run.executor, width);
  }
  NormKernels& kernels = run.executor.norm();
  kernels.layer_norm_forward(rows, width, eps, x, pointer_or_null(weight), pointer_or_null(bias), y);
  run.expect("out.y", y.array({rows, width}));
  kernels.layer_norm_backward(rows, width, eps, x, pointer_or_null(weight), dy, dx, pointer_or_null(d_weight),
                              pointer_or_null(d_bias));
  run.expect("grad.x", dx.array({rows, width}));
  if (d_weight) run.expect("grad.weight", d_weight->array({width}));
  if (d_bias) run.expect("grad.bias", d_bias->array({width}));
}

void run_embedding(RunContext& run) {
  const Index positions = run.dim("positions");
  const Index vocab = run.dim("vocab");
  const Index width = run.dim("d");
  DeviceFloats weight(run.executor, run.tensor("w.weight"));
  DeviceInts ids(run.executor, run.tensor("in.ids"));
  DeviceFloats dy(run.executor, run.tensor("in.dy"));
  DeviceFloats y(run.executor, positions * width);
  DeviceFloats d_weight(run.executor, vocab * width);
  run.executor.embedding().embedding_forward(positions, width, ids, weight, y);
  run.expect("out.y", y.array({positions, width}));
  run.executor.embedding().embedding_backward(positions, vocab, width, ids, dy, false, -1, d_weight);
  run.expect("grad.weight", d_weight.array({vocab, width}));
}

void run_accumulate(RunContext& run) { run.expect("out.sum", accumulate(run.executor, run.tensor("in.parts"))); }

void run_accumulation_is_aligned(RunContext& run) {
  const auto tokens = run.tensor("in.tokens").values<std::int32_t>();
  const auto pieces = run.tensor("in.pieces").values<std::int32_t>();
  Array aligned(DType::int32, {run.dim("rows")});
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    aligned.values<std::int32_t>()[i] = accumulation_is_aligned(tokens[i], pieces[i]) ? 1 : 0;
  }
  run.expect("out.aligned", aligned);
}

}  // namespace samba::verify
