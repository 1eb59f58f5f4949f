#include "commands.h"
#include "samba/core/error.h"

namespace samba::apps {

void add_decode_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("decode", "");
  line.on(command, "samba decode", []() -> int { refuse_unsupported("samba decode is not in this build"); });
}

}  // namespace samba::apps
