// samba convert: one form of a model into another, without loss.

#include <filesystem>

#include "commands.h"
#include "output.h"
#include "samba/core/error.h"
#include "samba/train/checkpoint.h"
#include "samba/train/model_folder.h"
#include "samba/train/run_folder.h"

namespace samba::apps {

namespace {

namespace fs = std::filesystem;

struct ConvertFlags {
  std::string in;
  std::string out;
  std::string to;
  std::string dtype = "float32";
  bool dry_run = false;
};

// A legacy JSON checkpoint, or a streamed archive that is written anew.
MappedNames to_archive(const Path& in, const Path& out, bool dry_run, const CommonOptions& common) {
  const std::unique_ptr<Executor> executor = make_executor(common);
  const auto trainer = load_for_training(*executor, in);
  if (!dry_run) save_checkpoint(*trainer, out);
  MappedNames names;
  for (const char* name : {"state", "parameters", "exp_avg", "exp_avg_sq", "buf_initialized"})
    names.emplace_back(name, name);
  return names;
}

std::string target_of(const ConvertFlags& flags) {
  if (flags.dtype != "float32") {
    refuse_unsupported("--dtype " + flags.dtype + " is not offered yet; accepted: float32 (nothing is rounded)");
  }
  if (flags.to == "gguf") refuse_unsupported("--to gguf is not offered yet; accepted: samba, safetensors");
  if (!flags.to.empty()) return flags.to;
  return Path(flags.out).extension() == ".samba" ? "samba" : "safetensors";
}

int run(const ConvertFlags& flags, const CommonOptions& common) {
  const std::string to = target_of(flags);
  if (!fs::exists(flags.in)) refuse_value("there is no file or folder " + flags.in);
  const bool from_folder = is_model_folder(flags.in);
  if (to == "samba" && fs::is_directory(flags.out))
    refuse_value("OUT " + flags.out + " is a folder; a .samba file is needed");
  MappedNames names;
  if (from_folder) {
    if (to != "samba") refuse_value("IN " + flags.in + " is a safetensors folder already; use --to samba");
    names = folder_to_archive(flags.in, flags.out, flags.dry_run);
  } else {
    const Path archive = find_checkpoint(flags.in);
    names = to == "samba" ? to_archive(archive, flags.out, flags.dry_run, common)
                          : archive_to_folder(archive, flags.out, flags.dry_run);
  }
  if (common.json) {
    nlohmann::ordered_json result{{"in", flags.in}, {"out", flags.out}, {"to", to}, {"written", !flags.dry_run}};
    result["mapped"] = nlohmann::json::array();
    for (const auto& [from, target] : names) result["mapped"].push_back({{"from", from}, {"to", target}});
    print(json_line(result));
    return 0;
  }
  std::string text;
  for (const auto& [from, target] : names) text += from + " -> " + target + "\n";
  print(text + (flags.dry_run ? "nothing written (--dry-run)\n" : "written: " + flags.out + "\n"));
  return 0;
}

}  // namespace

void add_convert_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command = app.add_subcommand("convert", "change the form of a model without loss");
  command->add_option("IN", flags->in, "a .samba file, a legacy JSON checkpoint, a run folder or a safetensors folder")
      ->required();
  command->add_option("OUT", flags->out, "the file or folder to write")->required();
  command->add_option("--to", flags->to, "samba, safetensors or gguf (default: samba for OUT.samba, else safetensors)")
      ->check(CLI::IsMember({"samba", "safetensors", "gguf"}));
  command->add_option("--dtype", flags->dtype, "float32, bfloat16 or int8")
      ->check(CLI::IsMember({"float32", "bfloat16", "bf16", "int8"}))
      ->capture_default_str();
  command->add_flag("--dry-run", flags->dry_run, "check and print what would be mapped, write nothing");
  line.on(command, "samba convert runs/first model-folder --to safetensors",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
