#include "commands.h"
#include "samba/core/error.h"

namespace samba::apps {

void add_convert_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("convert", "");
  line.on(command, "samba convert", []() -> int { refuse_unsupported("samba convert is not in this build"); });
}

}  // namespace samba::apps
