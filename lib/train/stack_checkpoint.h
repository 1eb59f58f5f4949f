// samba.stack.v1 files with their meaning (docs/formats/stack.md): the container of samba/formats/stack_archive.h whose
// configuration was read and whose tensors are those of its registry.
#pragma once

#include <memory>
#include <string>

#include "samba/formats/stack_archive.h"
#include "samba/kernels/executor.h"
#include "samba/model/registry.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/model_state.h"
#include "samba/train/trainer.h"

namespace samba {

class StackCheckpointReader {
 public:
  // Checks everything but the tensors' bytes: the classes of StackArchiveReader, config, registry; with `for_training`
  // also optimizer, schedule and rng where there are moments.
  StackCheckpointReader(const Path& path, bool for_training);

  const std::string& path() const { return path_; }
  const ModelState& state() const { return state_; }
  const Registry& registry() const { return registry_; }
  const StackArchiveReader& archive() const { return archive_; }
  WeightFormat format() const;

  // Parameter `index` of the registry, read and verified.
  Weight weight(std::size_t index);
  WeightMap weights();
  // All raw bytes of a tensor of archive(), verified.
  std::vector<std::byte> read(const StackTensor& tensor) { return archive_.read(tensor); }
  void read(const StackTensor& tensor, std::span<std::byte> raw) { archive_.read(tensor, raw); }

 private:
  [[noreturn]] void refuse(const char* error_class, const std::string& reason) const;
  void check_parameters() const;
  void check_moments() const;

  std::string path_;
  StackArchiveReader archive_;
  ModelState state_;
  Registry registry_;
};

// The names, shapes and dtypes of the moments of a model, in the order of the file.
struct MomentSpec {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
};
std::vector<MomentSpec> moment_specs(const Registry& registry, OptimizerKind kind);

// Class inference_only for a file without moments.
std::unique_ptr<SambaTrainer> load_stack_for_training(Executor& executor, const Path& path,
                                                      const FileProgress& progress = {}, const RankPlace& place = {});
// Packed weights stay packed.
std::unique_ptr<SambaStack> load_stack_for_inference(Executor& executor, const Path& path,
                                                     const FileProgress& progress = {});

}  // namespace samba
