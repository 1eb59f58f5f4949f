// Rows "packed/FORMAT/MxNxK/Nt": the product with a weight stored in fewer bits, and "fixed15/MxNxK/Nt": the integer
// product of numeric_profile fixed15_v1, which quantises its rows in the call. Beside both runs the float32 product of
// the same shape.
#include <algorithm>

#include "samba/bench/shapes.h"
#include "samba/kernels/weight.h"
#include "samba/numerics/packed_weight.h"
#include "samba/numerics/philox.h"

namespace samba::bench {

namespace {

constexpr double kLeastFlops = 2e8;

struct Shape3 {
  Index m, n, k;
  std::string text() const { return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k); }
};

Array draw(std::uint32_t stream, Index rows, Index columns) {
  Array values = Array::zeros({rows, columns});
  for (std::size_t i = 0; i < values.floats().size(); ++i) values.floats()[i] = stream_normal(1, stream, i, 0.0F, 1.0F);
  return values;
}

DeviceArray<float> uploaded(Executor& executor, const Array& host) {
  DeviceArray<float> device(executor.memory(), host.size());
  device.upload(host.floats().data());
  return device;
}

// Our product `ours` beside the float32 product of the same weight, which is the row's peer.
Row measure_beside_float32(const Context& context, const Shape3& shape, const std::string& name, Executor& executor,
                           double weight_bytes, const Array& weight,
                           const std::function<void(const float*, float*)>& ours) {
  const DeviceArray<float> x = uploaded(executor, draw(1, shape.m, shape.k));
  DeviceArray<float> y(executor.memory(), shape.m * shape.n);
  const auto floats = executor.linear().prepare(shape.n, shape.k, uploaded(executor, weight).data());
  const double flops = gemm_cost(shape.m, shape.n, shape.k).flops;
  const int calls = std::max(1, static_cast<int>(kLeastFlops / flops));
  const std::vector<Side> sides{{.work =
                                     [&] {
                                       for (int i = 0; i < calls; ++i) ours(x.data(), y.data());
                                       executor.memory().synchronize();
                                     }},
                                {.work = [&] {
                                  for (int i = 0; i < calls; ++i) {
                                    executor.linear().linear(*floats, shape.m, x.data(), y.data());
                                  }
                                  executor.memory().synchronize();
                                }}};
  const std::vector<Timing> timings = measure(sides, context.measuring);
  const MachineLimits& limits = context.machine.at(executor.threads());
  const Cost cost = Cost{flops, weight_bytes, weight_bytes} * calls;
  Row row{.name = name, .threads = executor.threads(), .unit = "GFLOP/s", .limit_name = limiting(cost, limits)};
  row.achieved = cost.flops / timings[0].wall_min / 1e9;
  row.limit = cost.flops / least_seconds(cost, limits) / 1e9;
  row.cost = cost;
  row.timing = timings[0];
  row.peer_name = "float32";
  row.peer = cost.flops / timings[1].wall_min / 1e9;
  return row;
}

Row measure_packed(const Context& context, const Shape3& shape, WeightFormat format, const std::string& name,
                   int threads) {
  const auto executor = context.executor(threads);
  const Array weight = draw(2, shape.n, shape.k);
  const Weight stored = pack_one(weight, format);
  const DeviceWeight device(executor->memory(), stored.view());
  const auto prepared = executor->linear().prepare(device.view().packed());
  return measure_beside_float32(context, shape, name, *executor, static_cast<double>(prepared->byte_size()), weight,
                                [&](const float* x, float* y) { executor->linear().linear(*prepared, shape.m, x, y); });
}

Row measure_fixed15(const Context& context, const Shape3& shape, const std::string& name, int threads) {
  const auto executor = context.executor(threads);
  const Array weight = draw(2, shape.n, shape.k);
  const auto codes = executor->fixed15().prepare(shape.n, shape.k, uploaded(*executor, weight).data());
  return measure_beside_float32(context, shape, name, *executor, 2.0 * static_cast<double>(shape.n * shape.k), weight,
                                [&](const float* x, float* y) { executor->fixed15().linear(*codes, shape.m, x, y); });
}

using MeasureShape = std::function<Row(const Context&, const Shape3&, const std::string& name, int threads)>;

void add_shapes(const RowSource& row, const std::string& prefix, const MeasureShape& measure_shape,
                std::vector<Case>& cases) {
  for (const Index n : row.sizes("n")) {
    for (const Index k : row.sizes("k")) {
      for (const Index m : row.sizes("m")) {
        const Shape3 shape{m, n, k};
        const std::string base = prefix + "/" + shape.text();
        Case c{.rows = {}, .quick = row.quick(), .run = {}};
        for (const int threads : row.threads) c.rows.push_back(thread_row(base, threads));
        c.run = [shape, base, measure_shape](const Context& context, const Wanted& wanted) {
          std::vector<Row> rows;
          for (const int threads : context.threads) {
            const std::string name = thread_row(base, threads);
            if (wanted(name)) rows.push_back(measure_shape(context, shape, name, threads));
          }
          return rows;
        };
        cases.push_back(std::move(c));
      }
    }
  }
}

}  // namespace

void add_packed(const RowSource& row, std::vector<Case>& cases) {
  for (const std::string& name : row.choices("formats", {"bfloat16", "int8"})) {
    const WeightFormat format = name == "int8" ? WeightFormat::int8 : WeightFormat::bfloat16;
    add_shapes(
        row, "packed/" + name,
        [format](const Context& context, const Shape3& shape, const std::string& row_name, int threads) {
          return measure_packed(context, shape, format, row_name, threads);
        },
        cases);
  }
}

void add_fixed15(const RowSource& row, std::vector<Case>& cases) { add_shapes(row, "fixed15", measure_fixed15, cases); }

}  // namespace samba::bench
