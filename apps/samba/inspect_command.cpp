#include "commands.h"
#include "samba/core/error.h"

namespace samba::apps {

void add_inspect_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("inspect", "");
  line.on(command, "samba inspect", []() -> int { refuse_unsupported("samba inspect is not in this build"); });
}

}  // namespace samba::apps
