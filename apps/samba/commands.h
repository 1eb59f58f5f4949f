// The commands of the executable. Each file NAME_command.cpp has one function `add_NAME_command`: it declares the
// subcommand and its flags on `app`, and hands `line` what to run when that subcommand was given:
//
//   void add_inspect_command(CLI::App& app, CommandLine& line) {
//     auto options = std::make_shared<Options>();
//     CLI::App* command = app.add_subcommand("inspect", "show what a checkpoint holds");
//     command->add_option("PATH", options->path, "a checkpoint")->required();
//     line.on(command, "samba inspect model.samba", [options, &line] { return run(*options, line.common); });
//   }
//
// The function returns the exit code; whatever is wrong is thrown as samba::Error (main.cpp knows the exit codes).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "samba/core/error.h"
#include "samba/kernels/executor.h"

namespace samba::apps {

// Flags of every command, accepted before and after its name.
struct CommonOptions {
  std::string device = "auto";
  int threads = 0;  // 0: all cores this process may use
  std::string instruction_set;
  std::string numeric_mode = "identical";
  bool json = false;
  std::string log_level = "info";
  std::string progress = "auto";  // auto, always, never
};

class CommandLine {
 public:
  CommonOptions common;

  // Runs `action` when `command` was given. `example` is shown by its --help.
  void on(CLI::App* command, const std::string& example, std::function<int()> action);

  struct Entry {
    CLI::App* command;
    std::function<int()> action;
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

int exit_code(ErrorKind kind);
// Tells on stderr what went wrong, and returns the code.
int fail(const std::string& message, int code);

// A flag's value that must be a whole number from 1 on.
CLI::Validator at_least_one();

// The executor the common flags ask for.
std::unique_ptr<Executor> make_executor(const CommonOptions& common);

void add_train_command(CLI::App& app, CommandLine& line);
void add_decode_command(CLI::App& app, CommandLine& line);
void add_prefill_command(CLI::App& app, CommandLine& line);
void add_verify_command(CLI::App& app, CommandLine& line);
void add_convert_command(CLI::App& app, CommandLine& line);
void add_inspect_command(CLI::App& app, CommandLine& line);
void add_tokenize_command(CLI::App& app, CommandLine& line);
void add_train_tokenizer_command(CLI::App& app, CommandLine& line);
void add_prepare_command(CLI::App& app, CommandLine& line);
void add_plot_command(CLI::App& app, CommandLine& line);
void add_bench_command(CLI::App& app, CommandLine& line);
void add_completion_command(CLI::App& app, CommandLine& line);

}  // namespace samba::apps
