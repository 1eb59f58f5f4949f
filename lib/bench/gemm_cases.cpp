// Rows "gemm/LAYOUT/MxNxK/Nt": the identical matrix product beside OpenBLAS sgemm, on a device beside its library's.
//
// nt is the product of a layer, whose weight is packed ahead; nn and tn pack both operands in the call, as the backward
// does. A product of one row reads its matrix once and does little with it: it is measured over copies that together
// exceed the caches four times, as decoding reads a model.
#include <algorithm>

#include "samba/backends/cpu/openblas.h"
#include "samba/bench/shapes.h"
#include "samba/kernels/device_bench.h"

namespace samba::bench {

namespace {

constexpr double kLeastFlops = 2e8;  // of a repetition: a millisecond or more

struct Product {
  Layout layout;
  Index m, n, k;
};

DeviceArray<float> draw(Executor& executor, std::uint32_t stream, Index count) {
  DeviceArray<float> values(executor.memory(), count);
  executor.random().uniform(1, stream, count, -1.0F, 1.0F, values.data());
  return values;
}

class GemmSides {
 public:
  GemmSides(const Context& context, const Product& product, int threads)
      : context_(context),
        p_(product),
        executor_(context.executor(threads)),
        device_(dynamic_cast<DeviceBench*>(executor_.get())) {
    const auto matrix = static_cast<double>(p_.n * p_.k) * sizeof(float);
    const double flops = gemm_cost(p_.m, p_.n, p_.k).flops;
    copies_ = 1;
    calls_ = std::max(1, static_cast<int>(kLeastFlops / flops));
    if (p_.m == 1) {
      const auto buffer = static_cast<double>(memory_buffer_bytes(context.machine));
      calls_ = copies_ = std::max(1, static_cast<int>(buffer / matrix) + 1);
    }
    a_ = draw(*executor_, 1, p_.m * p_.k);
    b_ = draw(*executor_, 2, p_.n * p_.k);
    c_ = DeviceArray<float>(executor_->memory(), p_.m * p_.n);
    for (int i = 0; i < copies_; ++i) {
      if (p_.layout == Layout::nt) prepared_.push_back(executor_->linear().prepare(p_.n, p_.k, b_.data()));
      if (copies_ > 1) plain_.push_back(draw(*executor_, 2, p_.n * p_.k));
    }
  }

  int calls() const { return calls_; }
  bool streamed() const { return copies_ > 1; }
  // Of what is measured beside it; empty: nothing.
  std::string peer() const {
    if (device_ != nullptr) return device_->blas_description();
    return context_.blas != nullptr ? "OpenBLAS" : "";
  }

  void ours() {
    LinearKernels& linear = executor_->linear();
    for (int i = 0; i < calls_; ++i) {
      if (p_.layout == Layout::nt) {
        linear.linear(*prepared_[static_cast<std::size_t>(i % copies_)], p_.m, a_.data(), c_.data());
      } else {
        linear.gemm(p_.layout, p_.m, p_.n, p_.k, a_.data(), matrix(i), c_.data());
      }
    }
    executor_->memory().synchronize();
  }

  void theirs() {
    const bool a_transposed = p_.layout == Layout::tn, b_transposed = p_.layout == Layout::nt;
    const Index a_width = a_transposed ? p_.m : p_.k, b_width = b_transposed ? p_.k : p_.n;
    for (int i = 0; i < calls_; ++i) {
      if (device_ != nullptr) {
        device_->library_gemm(p_.layout, p_.m, p_.n, p_.k, a_.data(), matrix(i), c_.data());
        continue;
      }
      context_.blas->sgemm(a_transposed, b_transposed, p_.m, p_.n, p_.k, a_.data(), a_width, matrix(i), b_width,
                           c_.data(), p_.n);
    }
    executor_->memory().synchronize();
  }

 private:
  const float* matrix(int call) const {
    return copies_ > 1 ? plain_[static_cast<std::size_t>(call % copies_)].data() : b_.data();
  }

  const Context& context_;
  Product p_;
  std::unique_ptr<Executor> executor_;
  DeviceBench* device_;  // null: of the cpu
  int copies_ = 1, calls_ = 1;
  DeviceArray<float> a_, b_, c_;
  std::vector<std::unique_ptr<PreparedWeight>> prepared_;
  std::vector<DeviceArray<float>> plain_;
};

Row measure_product(const Context& context, const Product& product, const std::string& name, int threads) {
  GemmSides work(context, product, threads);
  std::vector<Side> sides{{.work = [&] { work.ours(); }, .threads = threads}};
  const std::string peer = work.peer();
  if (!peer.empty()) {
    if (context.blas != nullptr) context.blas->use_threads(threads);
    sides.push_back({.work = [&] { work.theirs(); }, .threads = threads});
  }
  MeasureOptions options = context.measuring;
  options.foreign_threads = peer == "OpenBLAS";
  const std::vector<Timing> timings = measure(sides, options);

  const MachineLimits& limits = context.machine.at(threads);
  const Cost cost = gemm_cost(product.m, product.n, product.k) * work.calls();
  Row row{.name = name, .threads = threads, .unit = "GFLOP/s", .limit_name = "FMA peak"};
  row.achieved = cost.flops / timings[0].wall_min / 1e9;
  row.limit = limits.flops / 1e9;
  if (work.streamed()) {
    row.limit = cost.flops / least_seconds(cost, limits) / 1e9;
    row.limit_name = limiting(cost, limits);
  }
  row.cost = cost;
  row.timing = timings[0];
  if (!peer.empty()) {
    row.peer_name = peer;
    row.peer = cost.flops / timings[1].wall_min / 1e9;
  }
  return row;
}

}  // namespace

void add_gemm(const RowSource& row, std::vector<Case>& cases) {
  const std::vector<std::string> layouts = row.choices("layouts", {"nt", "nn", "tn"});
  const std::vector<Index> ms = row.sizes("m"), ns = row.sizes("n"), ks = row.sizes("k");
  for (const std::string& layout : layouts) {
    const Layout kind = layout == "nt" ? Layout::nt : layout == "nn" ? Layout::nn : Layout::tn;
    for (const Index n : ns) {
      for (const Index k : ks) {
        for (const Index m : ms) {
          const Product product{kind, m, n, k};
          const std::string base =
              "gemm/" + layout + "/" + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
          Case c{.rows = {}, .quick = row.quick(), .run = {}};
          for (const int threads : row.threads) c.rows.push_back(thread_row(base, threads));
          c.run = [product, base](const Context& context, const Wanted& wanted) {
            std::vector<Row> rows;
            for (const int threads : context.threads) {
              const std::string name = thread_row(base, threads);
              if (wanted(name)) rows.push_back(measure_product(context, product, name, threads));
            }
            return rows;
          };
          cases.push_back(std::move(c));
        }
      }
    }
  }
}

}  // namespace samba::bench
