#include "commands.h"
#include "samba/core/error.h"

namespace samba::apps {

void add_train_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("train", "");
  line.on(command, "samba train", []() -> int { refuse_unsupported("samba train is not in this build"); });
}

}  // namespace samba::apps
