// The small network of spec 50 part B: Linear(8, 16) -> ReLU -> Linear(16, 3) with mean cross-entropy over three
// classes.
//
// SmallMlp is its arithmetic on an executor: device pointers in, device pointers out, written against the kernel
// interface. The checked classes are MlpInference (lib/model/mlp_inference.h) and MlpTrainer (lib/train/mlp_trainer.h).
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "samba/blocks/stages.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

inline constexpr Index kMlpFeatures = 8;
inline constexpr Index kMlpHidden = 16;
inline constexpr Index kMlpClasses = 3;
inline constexpr Index kMlpMostRows = 256;  // of one call

// A parameter and its place among all of them laid end to end.
struct MlpTensor {
  std::string name;
  Shape shape;
  Index offset = 0;
  Index size = 0;
};

// weight1 (16, 8), bias1 (16), weight2 (3, 16), bias2 (3): their order everywhere.
const std::array<MlpTensor, 4>& mlp_tensors();
inline constexpr Index kMlpParameters = kMlpHidden * kMlpFeatures + kMlpHidden + kMlpClasses * kMlpHidden + kMlpClasses;

// The parameters laid end to end as arrays by name, and back. `flat` has kMlpParameters values.
ArrayMap mlp_arrays(std::span<const float> flat);
// Error: anything but the four names (value), a packed or other array that is not float32 (type), another shape
// (value), a value that is not finite (value); `noun` is put behind the name: "weight1 gradient must be ...".
std::vector<float> flat_mlp_arrays(const ConstWeightMap& arrays, const std::string& noun = "");

// X as the network takes it: float32 (rows, 8), 1 to 256 rows, finite. Returns the rows.
Index check_mlp_input(const ConstArray& x);

class SmallMlp {
 public:
  // Memory for 256 rows is taken here and reused by every call.
  explicit SmallMlp(Executor& executor);

  // Logits [rows, 3] of x [rows, 8], valid until the next call; parameters: [kMlpParameters]. Error(value) of the class
  // "non_finite" when a projection, an activation or a logit is not finite. `stages` may be null: pre1, act, pre2.
  const float* forward(Index rows, const float* parameters, const float* x, StageRecorder* stages = nullptr);

  // Mean loss of the rows that forward() has just seen, and the gradients of all parameters [kMlpParameters]; unless
  // null d_x [rows, 8]. targets: int32 [rows], each a class. Stages: dlogits, dhidden.
  float backward(Index rows, const float* parameters, const float* x, const std::int32_t* targets, float* gradients,
                 float* d_x, StageRecorder* stages = nullptr);

 private:
  void refuse_non_finite(const char* what, Index count, const float* values) const;
  void bias_gradient(Index rows, Index width, const float* upstream, float* gradient);

  Executor& executor_;
  DeviceArray<float> pre1_, act_, pre2_, logits_;              // of the last forward
  DeviceArray<float> row_loss_, d_logits_, d_act_, d_hidden_;  // of the last backward
  DeviceArray<std::int32_t> one_row_;                          // [256] zeros
};

}  // namespace samba
