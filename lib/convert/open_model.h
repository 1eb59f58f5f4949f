// A model whose description was read and checked while its tensors still lie in the files: what every form a model can
// have is turned into before it is loaded, converted or shown.
//
// Tensors are read one at a time, so that memory holds one of them, and whatever becomes of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/model_state.h"
#include "samba/train/stored_model.h"

namespace samba {

// One tensor of the registry, as a file holds it.
struct ModelTensor {
  std::string name;    // of the registry: "layers.0.q_proj.weight"
  Shape shape;         // of the registry
  std::string source;  // where it lies: "model.safetensors/model.layers.0.self_attn.q_proj.weight"
  std::string dtype;   // as it is stored: "float32", "float16", "Q4_K"
  // What `load` gives: the stored format where samba has it, else float32. The values are exactly the stored ones.
  WeightFormat format = WeightFormat::float32;
  // The stored bytes where they are a weight as they lie: valid as long as the model's keeper. It is of `format`, or
  // rows of blocks, which inference takes as they are.
  std::optional<ConstWeight> view;
  // Reads it. Error(corrupt) for bytes that are not what the file says.
  std::function<Weight()> load;
  // Gives the pages of the file back until they are read again. May be empty.
  std::function<void()> drop = {};
  std::uint64_t stored_bytes = 0;         // in the file; of other programs' forms
  std::optional<StackTensor> entry = {};  // as a samba.stack.v1 file has it
};

// A tensor while it is used: where it lies in a mapped file, whose pages are given back at the end, or read.
class HeldTensor {
 public:
  explicit HeldTensor(const ModelTensor& tensor) : tensor_(tensor) {
    if (!tensor_.view) loaded_ = tensor_.load();
  }
  ~HeldTensor() {
    if (tensor_.drop) tensor_.drop();
  }
  HeldTensor(const HeldTensor&) = delete;
  HeldTensor& operator=(const HeldTensor&) = delete;

  ConstWeight view() const { return tensor_.view ? *tensor_.view : loaded_.view(); }

 private:
  const ModelTensor& tensor_;
  Weight loaded_;
};

// A file that goes with a model and is made of what the source holds in another form.
struct MadeFile {
  std::string name;
  std::function<std::string()> content;
};

struct OpenModel {
  ModelForm form = ModelForm::stack_archive;
  Path path;
  std::uint64_t file_bytes = 0;  // of all files
  nlohmann::json description;    // as the form holds it: the state of a samba file, a config.json, GGUF metadata
  ModelState state;
  bool trainable = false;            // the files hold what training needs, whether it was asked for or not
  std::vector<ModelTensor> tensors;  // the parameters in registry order
  nlohmann::json run;                // the training run it is of (folder_run.h), or null
  Path metrics;                      // of that run; empty: none
  std::vector<ModelTensor> moments;  // in the order of a file; float32 and int32
  std::vector<Path> companions;      // tokenizer and generation files that go with the model
  std::vector<MadeFile> made_companions;
  std::shared_ptr<const void> keeper;  // of what the views see
};

// The packed format of the tensors, float32 when none is packed. Error(value) for two.
WeightFormat weight_format(const OpenModel& model);

// The float32 values of a tensor.
Array floats_of(const ModelTensor& tensor);

// What `samba inspect` shows of a tensor, in one pass over pieces of it: its entry in the file, or as samba would store
// it. `values` takes the bytes of its float32 values.
StackTensor describe_tensor(const ModelTensor& tensor, Sha256& values);

// The formats in which inference takes the tensors.
std::vector<WeightFormat> taken_formats(const OpenModel& model);

// The model in host memory.
StoredModel stored_model(const OpenModel& model);

// For inference: float32 tensors go to the device one by one, packed ones stay packed. Error(corrupt) for a value that
// is not finite.
std::unique_ptr<SambaStack> load_for_inference(Executor& executor, const OpenModel& model);

}  // namespace samba
