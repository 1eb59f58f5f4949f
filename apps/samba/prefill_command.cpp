#include "commands.h"
#include "samba/core/error.h"

namespace samba::apps {

void add_prefill_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("prefill", "");
  line.on(command, "samba prefill", []() -> int { refuse_unsupported("samba prefill is not in this build"); });
}

}  // namespace samba::apps
