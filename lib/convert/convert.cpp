#include "samba/convert/convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "samba/convert/folder_writer.h"
#include "samba/convert/gguf_write.h"
#include "samba/core/error.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/samba_archive.h"
#include "samba/formats/stack_weight.h"
#include "samba/kernels/weight_rows.h"
#include "samba/numerics/float32.h"
#include "samba/text/model_text.h"
#include "samba/train/checkpoint_source.h"
#include "samba/train/model_folder.h"

namespace samba {

namespace {

bool is_storable(WeightFormat format) {
  return format == WeightFormat::float32 || format == WeightFormat::bfloat16 || format == WeightFormat::int8;
}

// The largest |written - read| of a piece whose format changed.
double rounding_error(const ModelTensor& tensor, const WeightPiece& piece) {
  const Array written = expand(piece.weight);
  const Index columns = piece.weight.shape()[1];
  double largest = 0.0;
  for (std::size_t i = 0; i < piece.values.size(); ++i) {
    const float value = written.floats()[i], given = piece.values[i];
    if (!is_finite(value)) {
      refuse_value("--dtype " + std::string(weight_format_name(piece.weight.format())) + ": element " +
                   std::to_string(piece.first_row * columns + static_cast<Index>(i)) + " of " + tensor.name + " is " +
                   std::to_string(given) + ", which rounds to infinity");
    }
    largest = std::max(largest, std::fabs(static_cast<double>(value) - static_cast<double>(given)));
  }
  return largest;
}

// True when bfloat16 holds every value of the piece exactly. Error(corrupt) for one that is not finite.
bool check_values(const ModelTensor& tensor, const WeightPiece& piece) {
  const Index columns = tensor.shape.size() == 2 ? tensor.shape[1] : 0;
  bool narrow = true;
  for (std::size_t i = 0; i < piece.values.size(); ++i) {
    const float value = piece.values[i];
    narrow = narrow && (to_bits(value) & 0xFFFFU) == 0;
    if (is_finite(value)) continue;
    refuse_corrupt("weights_finite", tensor.source + ": element " +
                                         std::to_string(piece.first_row * columns + static_cast<Index>(i)) + " of " +
                                         tensor.name + " is not finite");
  }
  return narrow;
}

// A piece in its place among the raw bytes of a tensor of a samba.stack.v1 file.
void put_piece(const ModelTensor& tensor, const WeightPiece& piece, std::span<std::byte> raw) {
  const auto columns = static_cast<std::size_t>(tensor.shape.size() == 2 ? tensor.shape[1] : 0);
  const std::size_t first = static_cast<std::size_t>(piece.first_row) * columns;
  const auto put = [&](std::size_t at, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(raw.subspan(at, bytes).data(), from, bytes);
  };
  const std::size_t count = piece.values.size();
  if (!piece.weight.is_packed()) return put(first * sizeof(float), piece.weight.array().data, count * sizeof(float));
  const ConstPackedWeight& packed = piece.weight.packed();
  if (packed.format == WeightFormat::bfloat16) return put(first * 2, packed.bits, count * 2);
  put(first, packed.codes, count);
  const auto codes = static_cast<std::size_t>(element_count(tensor.shape));
  put(codes + static_cast<std::size_t>(piece.first_row) * 4, packed.exponents,
      static_cast<std::size_t>(packed.rows) * 4);
}

// Tensors laid end to end, as the Samba archive stores them; one of them is held at a time.
class FlatTensors {
 public:
  explicit FlatTensors(const std::vector<const ModelTensor*>& tensors) {
    for (const ModelTensor* tensor : tensors) {
      parts_.push_back({end_, tensor});
      end_ += static_cast<std::uint64_t>(element_count(tensor->shape)) * sizeof(float);
    }
  }
  PieceReader reader() {
    return
        [this](std::uint64_t first, void* to, std::size_t bytes) { read(first, static_cast<std::byte*>(to), bytes); };
  }

 private:
  struct Part {
    std::uint64_t begin;
    const ModelTensor* tensor;  // of values of four bytes
  };

  void read(std::uint64_t first, std::byte* to, std::size_t bytes) {
    while (bytes > 0) {
      const auto after = std::upper_bound(parts_.begin(), parts_.end(), first,
                                          [](std::uint64_t at, const Part& part) { return at < part.begin; });
      const Part& part = *std::prev(after);
      if (held_ == nullptr || holds_ != part.tensor) {
        held_.reset();
        held_ = std::make_unique<HeldTensor>(*part.tensor);
        holds_ = part.tensor;
      }
      const ConstWeight weight = held_->view();
      const auto* data = static_cast<const std::byte*>(weight.array().data);
      const auto inside = static_cast<std::size_t>(first - part.begin);
      const std::size_t count = std::min(bytes, static_cast<std::size_t>(weight.size()) * sizeof(float) - inside);
      std::memcpy(to, data + inside, count);
      first += count;
      to += count;
      bytes -= count;
    }
    if (first == end_) held_.reset();
  }

  std::vector<Part> parts_;
  std::uint64_t end_ = 0;
  std::unique_ptr<HeldTensor> held_;
  const ModelTensor* holds_ = nullptr;
};

// One conversion: what is read, how it is changed, where it goes.
class Converter {
 public:
  Converter(const ModelPlace& in, const Path& out, const ConvertOptions& options)
      : out_(out),
        options_(options),
        packs_((options.format && *options.format != WeightFormat::float32) || options.target == ConvertTarget::gguf),
        model_(open_model(in, packs_ ? Reading::inference : Reading::everything)) {}

  Conversion run() {
    plan();
    for (std::size_t i = 0; i < model_.tensors.size(); ++i) check(i);
    for (const ModelTensor& moment : model_.moments) {
      const HeldTensor held(moment);
      advance(moment.shape);
    }
    list_moments();
    if (!options_.dry_run) write();
    return std::move(result_);
  }

 private:
  void plan() {
    result_.from = model_.form;
    result_.drops_training = packs_ && model_.trainable;
    std::set<std::string> dtypes;
    for (const ModelTensor& tensor : model_.tensors) {
      dtypes.insert(tensor.dtype);
      const WeightFormat format = format_written(tensor);
      if (format != WeightFormat::float32) result_.to_format = format;
      total_ += static_cast<std::uint64_t>(element_count(tensor.shape));
    }
    for (const ModelTensor& moment : model_.moments) total_ += static_cast<std::uint64_t>(element_count(moment.shape));
    if (dtypes.size() > 1 && result_.to_format != WeightFormat::float32) dtypes.erase("float32");  // the vectors
    for (const std::string& dtype : dtypes) result_.from_dtypes += (result_.from_dtypes.empty() ? "" : ", ") + dtype;
    if (options_.target == ConvertTarget::folder) {
      folder_ = plan_folder(
          model_, result_.to_format, [this](const ModelTensor& tensor) { return format_written(tensor); },
          options_.model_type);
      if (folder_.type) result_.model_type = huggingface_type_name(*folder_.type);
      result_.no_model_type = folder_.why_none;
      result_.to = folder_.type ? ModelForm::huggingface_folder : ModelForm::folder;
      for (const Path& file : model_.companions) result_.copied.push_back(file.filename().string());
      for (const MadeFile& file : model_.made_companions) result_.made.push_back(file.name);
      return;
    }
    if (options_.target == ConvertTarget::gguf) {
      gguf_ =
          plan_gguf(model_, result_.to_format, [this](const ModelTensor& tensor) { return format_written(tensor); });
      result_.to = ModelForm::gguf_file;
      result_.vocabulary = gguf_.vocabulary;
      return;
    }
    const bool archive = fits_samba_archive(model_.state) && result_.to_format == WeightFormat::float32 &&
                         options_.codec == TensorCodec::none;
    result_.to = archive ? ModelForm::samba_archive : ModelForm::stack_archive;
  }

  // Only matrices are packed; what samba's files do not hold is expanded.
  WeightFormat format_written(const ModelTensor& tensor) const {
    if (tensor.shape.size() != 2) return WeightFormat::float32;
    if (options_.target == ConvertTarget::gguf && tensor.name.ends_with("A_log")) return WeightFormat::float32;
    if (options_.format) return *options_.format;
    return is_storable(tensor.format) ? tensor.format : WeightFormat::float32;
  }

  // A tensor in the format it is written in.
  void read(const ModelTensor& tensor, const PieceVisitor& visit) const {
    const HeldTensor held(tensor);
    convert_pieces(held.view(), format_written(tensor), tensor.name, visit);
  }

  // Reads a tensor, refuses values that are not finite, and lists it.
  void check(std::size_t index) {
    const ModelTensor& tensor = model_.tensors[index];
    const WeightFormat format = format_written(tensor);
    bool narrow = true;
    std::optional<double> error;
    // Back to float32 every format is expanded, which is exact.
    if (tensor.format != format) error = 0.0;
    read(tensor, [&](const WeightPiece& piece) {
      narrow = check_values(tensor, piece) && narrow;
      if (error) error = std::max(*error, rounding_error(tensor, piece));
    });
    if (tensor.shape.size() != 2 && narrow) narrow_.push_back(tensor.name);
    result_.tensors.push_back(
        {tensor.source, place_of(index), tensor.shape, std::string(weight_format_name(format)), error});
    advance(tensor.shape);
  }

  std::string place_of(std::size_t index) const {
    const ModelTensor& tensor = model_.tensors[index];
    switch (options_.target) {
      case ConvertTarget::folder:
        return folder_place(folder_, model_, tensor);
      case ConvertTarget::gguf:
        return gguf_.places[index].name;
      case ConvertTarget::file:
        break;
    }
    return "parameters/" + tensor.name;
  }

  void list_moments() {
    for (const ModelTensor& moment : model_.moments) {
      result_.tensors.push_back({moment.source, moment_place(moment.name), moment.shape, moment.dtype, std::nullopt});
    }
  }

  std::string moment_place(const std::string& name) const {
    if (options_.target == ConvertTarget::folder) return "optimizer.safetensors/" + name;
    if (result_.to == ModelForm::stack_archive) return "moments/" + name;
    const std::size_t point = name.find('.');  // the archive's arrays hold the moments of all parameters
    return point == std::string::npos ? name : name.substr(0, point) + "/" + name.substr(point + 1);
  }

  // Half of the work is checking, half is writing.
  void advance(const Shape& shape) {
    done_ += static_cast<std::uint64_t>(element_count(shape));
    if (options_.progress) options_.progress(done_, options_.dry_run ? total_ : 2 * total_);
  }

  void write() {
    if (options_.target == ConvertTarget::folder) {
      const auto reader = [this](const ModelTensor& tensor, const PieceVisitor& visit) { read(tensor, visit); };
      if (result_.to_format != WeightFormat::bfloat16) narrow_.clear();
      std::sort(narrow_.begin(), narrow_.end());
      write_new_folder(out_, [&](const Path& place) {
        write_folder(folder_, model_, reader, narrow_, place, [](std::uint64_t) {});
      });
    } else if (options_.target == ConvertTarget::gguf) {
      // Digests of an older file would not be those of this one.
      std::filesystem::remove(hashes_path(out_));
      write_gguf_model(gguf_, model_, out_);
      write_hashes(out_);
    } else if (result_.to == ModelForm::samba_archive) {
      write_samba();
    } else {
      write_stack();
    }
    if (options_.target == ConvertTarget::file) keep_tokenizer_of_file();
    if (options_.progress) options_.progress(2 * total_, 2 * total_);
  }

  void write_samba() const {
    std::array<std::vector<const ModelTensor*>, kArchiveArrays> arrays;
    for (const ModelTensor& tensor : model_.tensors) arrays[kParameters].push_back(&tensor);
    for (const ModelTensor& moment : model_.moments) {
      const bool flags = moment.name == kInitializedName;
      arrays[flags ? kBufferInitialized : moment.name.starts_with("exp_avg.") ? kExpAvg : kExpAvgSq].push_back(&moment);
    }
    FlatTensors parameters(arrays[kParameters]), exp_avg(arrays[kExpAvg]), exp_avg_sq(arrays[kExpAvgSq]),
        initialized(arrays[kBufferInitialized]);
    write_samba_archive(out_, samba_state_json(model_.state), archive_counts(Registry(model_.state.config)),
                        {parameters.reader(), exp_avg.reader(), exp_avg_sq.reader(), initialized.reader()});
  }

  void write_stack() {
    std::vector<StackTensorSource> parameters, moments;
    for (const ModelTensor& tensor : model_.tensors) {
      parameters.push_back(
          {tensor.name, stored_dtype(format_written(tensor)), tensor.shape, [this, &tensor](std::span<std::byte> raw) {
             read(tensor, [&](const WeightPiece& piece) { put_piece(tensor, piece, raw); });
           }});
    }
    for (const ModelTensor& moment : model_.moments) {
      const DType dtype = moment.dtype == dtype_name(DType::int32) ? DType::int32 : DType::float32;
      moments.push_back({moment.name, dtype, moment.shape, [&moment](std::span<std::byte> raw) {
                           const HeldTensor held(moment);
                           std::memcpy(raw.data(), held.view().array().data, raw.size());
                         }});
    }
    write_stack_archive(out_, stack_state_json(model_.state, result_.to_format), parameters, moments, options_.codec,
                        [this](std::uint64_t done, std::uint64_t total) {
                          if (options_.progress && total > 0) {
                            const double part = static_cast<double>(done) / static_cast<double>(total);
                            options_.progress(total_ + static_cast<std::uint64_t>(part * static_cast<double>(total_)),
                                              2 * total_);
                          }
                        });
  }

  // A samba file has its tokenizer beside it, and a .json file of its own name that tells so. Files of another model
  // that are there already stay.
  void keep_tokenizer_of_file() {
    const auto tokenizer = std::find_if(model_.companions.begin(), model_.companions.end(), [](const Path& file) {
      return file.filename() == "tokenizer.json" || file.filename() == "tokenizer.model";
    });
    if (tokenizer == model_.companions.end()) return;
    Path sidecar = out_;
    sidecar.replace_extension(".json");
    const Path folder = std::filesystem::absolute(out_).parent_path();
    try {
      if (std::filesystem::exists(sidecar)) refuse_value(sidecar.string() + " is there already");
      for (const Path& file : model_.companions) {
        const Path there = folder / file.filename();
        if (std::filesystem::exists(there) && read_file(there) != read_file(file)) {
          refuse_value(there.string() + " is another model's");
        }
      }
      const ModelText text = read_tokenizer_text(*tokenizer);
      const nlohmann::ordered_json entry = keep_tokenizer(text, *tokenizer, folder);
      write_file_atomically(sidecar, nlohmann::ordered_json{{"tokenizer", entry}}.dump(2) + "\n");
      result_.copied.push_back(entry["file"].get<std::string>());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::resource) throw;
      result_.no_tokenizer = error.what();
    }
  }

  const Path& out_;
  const ConvertOptions& options_;
  bool packs_;
  OpenModel model_;
  FolderPlan folder_;
  GgufPlan gguf_;
  NarrowVectors narrow_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  Conversion result_;
};

}  // namespace

Conversion convert_model(const ModelPlace& in, const Path& out, const ConvertOptions& options) {
  if (options.target == ConvertTarget::folder) check_new_folder(out);
  if (options.target != ConvertTarget::folder && std::filesystem::is_directory(out)) {
    refuse_value("OUT " + out.string() + " is a folder; a " +
                 (options.target == ConvertTarget::gguf ? ".gguf" : ".samba") + " file is needed");
  }
  check_hashes(in.path);
  return Converter(in, out, options).run();
}

}  // namespace samba
