// The executable: flags, the choice of a command, and what an error means for the exit code.

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>
#include <system_error>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "commands.h"
#include "last_resort.h"
#include "output.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/core/names.h"
#include "samba/core/streams.h"

namespace samba::apps {

namespace {

constexpr int kBadUse = 2;
constexpr int kInternal = 70;

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string version_text() {
  const std::unique_ptr<Executor> best = samba::make_executor("auto");
  return "samba " SAMBA_VERSION "\nbuild: " SAMBA_BUILD_DESCRIPTION "\ndevices: auto, " + join(compiled_devices()) +
         "\ninstruction sets: " + join(instruction_sets()) + " (chosen: " + best->instruction_set() + ")";
}

void add_common_flags(CLI::App& app, CommonOptions& common) {
  app.add_option("--device", common.device, "where to compute: auto, cpu, reference, cuda, hip")->capture_default_str();
  app.add_option("--threads", common.threads, "threads to use; 0: all cores this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--isa", common.instruction_set, "instruction set of the cpu device (default: the best there is)")
      ->envname("SAMBA_ISA");
  app.add_option("--numeric-mode", common.numeric_mode, "identical, deterministic or fast")
      ->check(CLI::IsMember({"identical", "deterministic", "fast"}))
      ->capture_default_str();
  app.add_flag("--json", common.json, "one machine-readable document (or JSON lines) on stdout");
  app.add_option("--log-level", common.log_level, "trace, debug, info, warn, error or off")
      ->envname("SAMBA_LOG")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_option("--progress", common.progress, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What was not understood, and the nearest thing that would have been.
std::string unexpected_argument(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  const std::vector<std::string> remaining = app.remaining(true);
  std::string argument = remaining.empty() ? "" : remaining.front();
  for (const std::string& text : remaining) {
    if (text.starts_with("-")) {
      argument = text;
      break;
    }
  }
  argument = argument.substr(0, argument.find('='));
  std::vector<std::string> known;
  std::string message;
  if (given.empty() && !argument.starts_with("-")) {
    message = "unknown command '" + argument + "'";
    for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  } else {
    message = (argument.starts_with("-") ? "unknown flag " : "unexpected argument ") + argument;
    known = option_names(app);
    if (!given.empty()) {
      message += " of samba " + given.front()->get_name();
      for (const std::string& name : option_names(*given.front())) known.push_back(name);
    }
  }
  const std::string nearest = nearest_name(argument, known);
  if (!nearest.empty()) return message + "; did you mean " + nearest + "?";
  return message + "; see samba " + (given.empty() ? "" : given.front()->get_name() + " ") + "--help";
}

// Of CLI11's "Could not convert: --top-k = 1.5": the flag, what it takes and what was given.
std::string unreadable_value(const CLI::App& app, const std::string& message) {
  const std::size_t name = message.find("--"), equal = message.find(" = ");
  if (name == std::string::npos || equal == std::string::npos || equal < name) return message;
  const std::string flag = message.substr(name, equal - name);
  const CLI::Option* option = app.get_option_no_throw(flag);
  for (const CLI::App* command : app.get_subcommands()) {
    if (option == nullptr) option = command->get_option_no_throw(flag);
  }
  const std::string type = option == nullptr ? "" : option->get_type_name();
  const std::string accepted = type.starts_with("INT")     ? "a whole number"
                               : type.starts_with("UINT")  ? "a whole number, at least 0"
                               : type.starts_with("FLOAT") ? "a number"
                                                           : "a value that it takes (see --help)";
  return flag + ": must be " + accepted + ", got " + message.substr(equal + 3);
}

void set_up_logging(const CommonOptions& common) {
  auto logger = spdlog::stderr_color_mt("samba");
  logger->set_pattern("%^%l%$: %v");
  logger->set_level(spdlog::level::from_str(common.log_level == "warn" ? "warning" : common.log_level));
  spdlog::set_default_logger(logger);
}

int run(int argc, char** argv) {
  CLI::App app{"samba trains and runs Transformer and Mamba language models with the same bits everywhere.", "samba"};
  CommandLine line;
  add_common_flags(app, line.common);
  app.set_version_flag("--version", version_text, "version, build flags, devices, instruction set");
  app.require_subcommand(0, 1);
  add_train_command(app, line);
  add_decode_command(app, line);
  add_prefill_command(app, line);
  add_verify_command(app, line);
  add_convert_command(app, line);
  add_inspect_command(app, line);
  add_tokenize_command(app, line);
  add_train_tokenizer_command(app, line);
  add_prepare_command(app, line);
  add_plot_command(app, line);
  add_bench_command(app, line);
  add_completion_command(app, line);
  app.footer(
      "samba COMMAND --help shows the flags of a command and an example.\nExit codes: 0 fine; 1 a check failed or "
      "the loss was not finite; 2 bad use or input; 3 damaged file;\n4 memory, disk or device; 70 internal; 130 "
      "interrupted.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::ostringstream text, errors;
    const int code = app.exit(help, text, errors);
    print(text.str());
    return code;
  } catch (const CLI::ExtrasError&) {
    return fail(unexpected_argument(app), kBadUse);
  } catch (const CLI::ConversionError& error) {
    return fail(unreadable_value(app, error.what()), kBadUse);
  } catch (const CLI::ParseError& error) {
    return fail(error.what(), kBadUse);
  }
  set_up_logging(line.common);
  for (const CommandLine::Entry& entry : line.entries()) {
    if (entry.command->parsed()) return entry.action();
  }
  print(app.help());
  return kBadUse;
}

// A tensor that has passed through memory is given back to the system: without this the C library keeps the room of
// large blocks, once it has seen some, and what a model takes would grow by the largest of its tensors.
void return_large_blocks() {
#if defined(__GLIBC__)
  constexpr int kLargeBlock = 1 << 20;
  (void)mallopt(M_MMAP_THRESHOLD, kLargeBlock);
#endif
}

}  // namespace

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::check:
      return 1;
    case ErrorKind::value:
    case ErrorKind::type:
    case ErrorKind::unsupported:
      return kBadUse;
    case ErrorKind::corrupt:
      return 3;
    case ErrorKind::resource:
      return 4;
    case ErrorKind::internal:
      break;
  }
  return kInternal;
}

int fail(const std::string& message, int code) {
  std::fprintf(stderr, "samba: %s\n", message.c_str());
  return code;
}

void CommandLine::on(CLI::App* command, const std::string& example, std::function<int()> action) {
  command->fallthrough();
  command->footer("Example:\n  " + example +
                  "\n\nFlags of every command (samba --help): --device --threads --isa "
                  "--numeric-mode --json --log-level --progress");
  entries_.push_back({command, std::move(action)});
}

CLI::Validator at_least_one() {
  return CLI::Validator(
      [](const std::string& text) {
        std::int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        const bool fits = error == std::errc() && rest == end && value >= 1;
        return fits ? std::string() : "must be a whole number, at least 1, got " + text;
      },
      "POSITIVE");
}

std::unique_ptr<Executor> make_executor(const CommonOptions& common) {
  const NumericMode mode = parse_numeric_mode(common.numeric_mode);
  if (mode == NumericMode::fast) {
    spdlog::warn("numeric mode fast: nothing is promised of the bits, they may differ from run to run (products: {})",
                 fast_products());
  } else if (mode == NumericMode::deterministic) {
    spdlog::warn(
        "numeric mode deterministic: the same bits on this machine only, not those of identical (products: {})",
        fast_products());
  }
  return samba::make_executor(common.device, {common.threads, common.instruction_set, mode});
}

}  // namespace samba::apps

int main(int argc, char** argv) {
  using namespace samba;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is told by write()
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file that may not grow
  apps::return_large_blocks();
  apps::prepare_last_resort();
  try {
    return apps::run(argc, argv);
  } catch (const apps::OutputClosed&) {
    return 0;
  } catch (const Error& error) {
    return apps::fail(error.what(), apps::exit_code(error.kind()));
  } catch (const std::system_error& error) {  // of the file system, or a thread that cannot be started
    return apps::fail(error.what(), apps::exit_code(kind_of_system_error(error.code().value())));
  } catch (const std::bad_alloc&) {
    return apps::fail("out of memory", 4);
  } catch (const std::exception& error) {
    return apps::fail(std::string("internal error: ") + error.what(), apps::kInternal);
  }
}
