#include "samba/convert/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "samba/convert/folder_writer.h"
#include "samba/convert/gguf_write.h"
#include "samba/core/error.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/stack_weight.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/low_bit.h"
#include "samba/text/model_text.h"
#include "samba/train/model_folder.h"

namespace samba {

namespace {

bool is_storable(WeightFormat format) {
  return format == WeightFormat::float32 || format == WeightFormat::bfloat16 || format == WeightFormat::int8;
}

// The float32 values of a weight, some rows of a matrix at a time, so that a large one is never expanded whole.
class RowReader {
 public:
  explicit RowReader(const ConstWeight& weight) : weight_(weight), size_(static_cast<std::size_t>(weight.size())) {
    const Shape shape = weight.shape();
    columns_ = shape.size() == 2 ? static_cast<std::size_t>(shape[1]) : size_;
    step_ = columns_ == 0 || shape.size() != 2 ? size_ : columns_ * std::max<std::size_t>(1, kValues / columns_);
    fill();
  }
  bool done() const { return first_ >= size_; }
  void next() {
    first_ += step_;
    if (!done()) fill();
  }
  std::size_t first() const { return first_; }  // the place of the first of values()
  std::span<const float> values() const { return values_; }

 private:
  static constexpr std::size_t kValues = std::size_t{1} << 18;

  void fill() {
    const std::size_t count = std::min(step_, size_ - first_);
    if (!weight_.is_packed()) {
      values_ = {weight_.array().floats() + first_, count};
      return;
    }
    const std::size_t row = first_ / columns_;
    ConstPackedWeight part = weight_.packed();
    if (!is_storable(part.format)) {  // its rows are blocks of another kind
      expanded_ = expand(weight_);
      step_ = size_;
      values_ = expanded_.floats();
      return;
    }
    part.rows = static_cast<Index>(count / columns_);
    if (part.bits != nullptr) part.bits += first_;
    if (part.codes != nullptr) part.codes += first_;
    if (part.exponents != nullptr) part.exponents += row;
    if (expanded_.size() < static_cast<Index>(count)) expanded_ = Array::zeros({static_cast<Index>(count)});
    expand(part, expanded_.floats().first(count));
    values_ = expanded_.floats().first(count);
  }

  ConstWeight weight_;
  std::size_t size_;
  std::size_t columns_ = 0;
  std::size_t step_ = 0;
  std::size_t first_ = 0;
  Array expanded_;
  std::span<const float> values_;
};

// A tensor where it lies in a mapped file, or read; rows of blocks are expanded by reading.
class HeldWeight {
 public:
  explicit HeldWeight(const ModelTensor& tensor) : tensor_(tensor), in_place_(lies_in_place(tensor)) {
    if (!in_place_) loaded_ = tensor.load();
  }
  ~HeldWeight() {
    if (tensor_.view && tensor_.drop) tensor_.drop();
  }
  HeldWeight(const HeldWeight&) = delete;
  HeldWeight& operator=(const HeldWeight&) = delete;

  ConstWeight view() const { return in_place_ ? *tensor_.view : loaded_.view(); }

 private:
  static bool lies_in_place(const ModelTensor& tensor) {
    return tensor.view && !(tensor.view->is_packed() && tensor.view->packed().blocks != nullptr);
  }

  const ModelTensor& tensor_;
  bool in_place_;
  Weight loaded_;
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
      moment.load();
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
      gguf_ = plan_gguf(model_, result_.to_format);
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

  Weight read(const ModelTensor& tensor) const {
    const WeightFormat format = format_written(tensor);
    if (tensor.format == format) return tensor.load();
    const HeldWeight held(tensor);
    return held.view().format() == format ? tensor.load() : pack_one(held.view(), format, tensor.name);
  }

  // Reads a tensor, refuses values that are not finite, and lists it.
  void check(std::size_t index) {
    const ModelTensor& tensor = model_.tensors[index];
    const HeldWeight held(tensor);
    const ConstWeight before = held.view();
    const bool narrow = check_values(tensor, before);
    if (tensor.shape.size() != 2 && narrow) narrow_.push_back(tensor.name);
    const WeightFormat format = format_written(tensor);
    std::optional<double> error;
    // Other formats than samba's own are expanded, which is exact.
    if (before.format() != format && is_storable(before.format())) {
      error = rounding_error(tensor, before, pack_one(before, format, tensor.name).view());
    }
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

  // True when bfloat16 holds every value exactly. Error(corrupt) for one that is not finite.
  static bool check_values(const ModelTensor& tensor, const ConstWeight& weight) {
    bool narrow = true;
    for (RowReader rows(weight); !rows.done(); rows.next()) {
      for (std::size_t i = 0; i < rows.values().size(); ++i) {
        const float value = rows.values()[i];
        narrow = narrow && (to_bits(value) & 0xFFFFU) == 0;
        if (is_finite(value)) continue;
        refuse_corrupt("weights_finite", tensor.source + ": element " + std::to_string(rows.first() + i) + " of " +
                                             tensor.name + " is not finite");
      }
    }
    return narrow;
  }

  static double rounding_error(const ModelTensor& tensor, const ConstWeight& before, const ConstWeight& after) {
    double largest = 0.0;
    RowReader rows_before(before);
    for (RowReader rows(after); !rows.done(); rows.next(), rows_before.next()) {
      for (std::size_t i = 0; i < rows.values().size(); ++i) {
        const float value = rows.values()[i], given = rows_before.values()[i];
        if (!is_finite(value)) {
          refuse_value("--dtype " + std::string(weight_format_name(after.format())) + ": element " +
                       std::to_string(rows.first() + i) + " of " + tensor.name + " is " + std::to_string(given) +
                       ", which rounds to infinity");
        }
        largest = std::max(largest, std::fabs(static_cast<double>(value) - static_cast<double>(given)));
      }
    }
    return largest;
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
      const auto reader = [this](const ModelTensor& tensor) { return read(tensor); };
      if (result_.to_format != WeightFormat::bfloat16) narrow_.clear();
      std::sort(narrow_.begin(), narrow_.end());
      write_new_folder(out_, [&](const Path& place) {
        write_folder(folder_, model_, reader, narrow_, place, [](std::uint64_t) {});
      });
    } else if (options_.target == ConvertTarget::gguf) {
      // Digests of an older file would not be those of this one.
      std::filesystem::remove(hashes_path(out_));
      write_gguf_model(
          gguf_, model_, [this](const ModelTensor& tensor) { return expand(read(tensor).view()); }, out_);
      write_hashes(out_);
    } else if (result_.to == ModelForm::samba_archive) {
      write_model_file(stored_model(model_), out_);
    } else {
      write_stack();
    }
    if (options_.target == ConvertTarget::file) keep_tokenizer_of_file();
    if (options_.progress) options_.progress(2 * total_, 2 * total_);
  }

  void write_stack() {
    std::vector<StackTensorSource> parameters, moments;
    for (const ModelTensor& tensor : model_.tensors) {
      parameters.push_back(
          {tensor.name, stored_dtype(format_written(tensor)), tensor.shape, [this, &tensor](std::span<std::byte> raw) {
             const Weight weight = read(tensor);
             stack_tensor_source(tensor.name, weight.view()).read(raw);
           }});
    }
    for (const ModelTensor& moment : model_.moments) {
      const DType dtype = moment.dtype == dtype_name(DType::int32) ? DType::int32 : DType::float32;
      moments.push_back({moment.name, dtype, moment.shape, [&moment](std::span<std::byte> raw) {
                           const Weight weight = moment.load();
                           std::memcpy(raw.data(), weight.array().data(), raw.size());
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
