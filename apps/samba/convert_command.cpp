// samba convert: one form of a model into another; without loss, or with weights rounded to a packed format.

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "commands.h"
#include "mlp_commands.h"
#include "output.h"
#include "progress.h"
#include "samba/convert/convert.h"
#include "samba/core/error.h"
#include "samba/train/model_kind.h"

namespace samba::apps {

namespace {

namespace fs = std::filesystem;

struct ConvertFlags {
  std::string in;
  std::string out;
  std::string to;
  std::string dtype;
  std::string codec = "none";
  std::string model_type;
  bool dry_run = false;
};

std::string target_of(const ConvertFlags& flags) {
  if (!flags.to.empty()) return flags.to;
  const Path extension = Path(flags.out).extension();
  if (extension == ".gguf") return "gguf";
  return extension == ".samba" || extension == ".mlp" ? "samba" : "safetensors";
}

ConvertOptions options_of(const ConvertFlags& flags, const std::string& to) {
  ConvertOptions options;
  options.target = to == "samba" ? ConvertTarget::file : to == "gguf" ? ConvertTarget::gguf : ConvertTarget::folder;
  if (!flags.dtype.empty()) options.format = parse_weight_format(flags.dtype == "bf16" ? "bfloat16" : flags.dtype);
  options.codec = tensor_codec(flags.codec);
  if (options.codec != TensorCodec::none && to != "samba") {
    refuse_value("--codec " + flags.codec + " needs --to samba; other files are not compressed");
  }
  options.model_type = flags.model_type;
  if (!flags.model_type.empty() && to != "safetensors") refuse_value("--model-type needs --to safetensors");
  options.dry_run = flags.dry_run;
  return options;
}

std::string error_text(double error) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", error);
  return text;
}

nlohmann::ordered_json as_json(const ConvertFlags& flags, const std::string& to, const Conversion& conversion) {
  nlohmann::ordered_json result{{"in", flags.in},
                                {"out", flags.out},
                                {"from", model_form_name(conversion.from)},
                                {"to", to},
                                {"format", model_form_name(conversion.to)},
                                {"weight_format", weight_format_name(conversion.to_format)},
                                {"drops_training", conversion.drops_training},
                                {"model_type", conversion.model_type},
                                {"copied", conversion.copied},
                                {"no_tokenizer", conversion.no_tokenizer},
                                {"written", !flags.dry_run}};
  result["mapped"] = nlohmann::json::array();
  for (const ConvertedTensor& tensor : conversion.tensors) {
    nlohmann::ordered_json line{
        {"from", tensor.source}, {"to", tensor.target}, {"shape", tensor.shape}, {"dtype", tensor.dtype}};
    if (tensor.largest_error) line["largest_error"] = *tensor.largest_error;
    result["mapped"].push_back(std::move(line));
  }
  return result;
}

std::string as_text(const ConvertFlags& flags, const Conversion& conversion) {
  std::string text = "from: " + std::string(model_form_name(conversion.from)) + ", " + conversion.from_dtypes +
                     "\nto: " + std::string(model_form_name(conversion.to)) + ", " +
                     std::string(weight_format_name(conversion.to_format)) + "\n";
  if (!conversion.model_type.empty()) text += "model_type: " + conversion.model_type + ", which transformers loads\n";
  if (conversion.to == ModelForm::folder) {
    text += "names: samba's own, transformers does not load it (" + conversion.no_model_type + ")\n";
  }
  if (conversion.drops_training) {
    text += "left out: moments, optimizer, schedule and random stream; rounded weights are for inference only\n";
  }
  std::size_t names = 0, shapes = 0;
  for (const ConvertedTensor& tensor : conversion.tensors) {
    names = std::max(names, tensor.source.size() + tensor.target.size() + 4);
    shapes = std::max(shapes, shape_text(tensor.shape).size());
  }
  const auto padded = [](std::string cell, std::size_t width) {
    cell.resize(std::max(cell.size(), width), ' ');
    return cell + "  ";
  };
  for (const ConvertedTensor& tensor : conversion.tensors) {
    text +=
        padded(tensor.source + " -> " + tensor.target, names) + padded(shape_text(tensor.shape), shapes) + tensor.dtype;
    if (tensor.largest_error) text += "  largest error " + error_text(*tensor.largest_error);
    text += "\n";
  }
  for (const std::string& name : conversion.copied) text += name + " -> " + name + "  copied as it is\n";
  if (!conversion.no_tokenizer.empty()) text += "tokenizer: left where it is (" + conversion.no_tokenizer + ")\n";
  for (const std::string& name : conversion.made) text += "metadata -> " + name + "\n";
  if (!conversion.vocabulary.empty()) text += "tokenizer: " + conversion.vocabulary + "\n";
  return text + (flags.dry_run ? "nothing written (--dry-run)\n" : "written: " + flags.out + "\n");
}

MlpConversion mlp_options_of(const ConvertFlags& flags, const ConvertOptions& options) {
  if (options.codec != TensorCodec::none) refuse_value("--codec " + flags.codec + " is not for an MLP");
  if (options.target == ConvertTarget::gguf)
    refuse_unsupported("--to gguf is not for an MLP; accepted: samba, safetensors");
  return {options.target == ConvertTarget::file, options.format.value_or(WeightFormat::float32), options.dry_run};
}

int run(const ConvertFlags& flags, const CommonOptions& common) {
  const std::string to = target_of(flags);
  ConvertOptions options = options_of(flags, to);
  if (!fs::exists(flags.in)) refuse_value("there is no file or folder " + flags.in);
  const ModelPlace in = find_model(flags.in);
  if (model_kind_of_file(in.path) == ModelKind::mlp) {
    print(convert_mlp(in.path, flags.out, mlp_options_of(flags, options), common));
    return 0;
  }
  std::unique_ptr<Progress> progress;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (!progress) progress = std::make_unique<Progress>(common.progress, "convert", "values", 0, total);
    progress->update(done);
  };
  const Conversion conversion = convert_model(in, flags.out, options);
  if (progress) progress->finish();
  print(common.json ? json_line(as_json(flags, to, conversion)) : as_text(flags, conversion));
  return 0;
}

}  // namespace

void add_convert_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command = app.add_subcommand("convert", "change the form of a model, or round its weights");
  command
      ->add_option(
          "IN", flags->in,
          "a .samba file, a legacy JSON checkpoint, a run folder, a GGUF file, or a folder of safetensors: of samba, "
          "Hugging Face transformers or mamba_ssm")
      ->required();
  command->add_option("OUT", flags->out, "the file or folder to write")->required();
  command
      ->add_option(
          "--to", flags->to,
          "samba, safetensors or gguf (default: samba for OUT.samba and OUT.mlp, gguf for OUT.gguf, else safetensors)")
      ->check(CLI::IsMember({"samba", "safetensors", "gguf"}));
  command
      ->add_option("--dtype", flags->dtype,
                   "store matrices as float32, bfloat16 or int8 (default: as they are); rounded ones are for inference")
      ->check(CLI::IsMember({"float32", "bfloat16", "bf16", "int8"}));
  command->add_option("--codec", flags->codec, "none, or zstd: compress the tensors of a samba.stack.v1 file")
      ->check(CLI::IsMember({"none", "zstd"}))
      ->capture_default_str();
  command->add_option("--model-type", flags->model_type,
                      "with --to safetensors: the model_type of transformers to write, where several would do");
  command->add_flag("--dry-run", flags->dry_run, "check and print what would be mapped, write nothing");
  line.on(command, "samba convert runs/first model-folder --to safetensors",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
