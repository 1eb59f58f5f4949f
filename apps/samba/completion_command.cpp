// samba completion bash|zsh: a completion script made from the commands and flags themselves.

#include "commands.h"
#include "output.h"
#include "samba/core/error.h"

namespace samba::apps {

namespace {

std::string flag_names(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) text += (text.empty() ? "--" : " --") + name;
  }
  return text;
}

std::string bash_script(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
    cases += "        " + command->get_name() + ") flags=\"" + flag_names(*command) + "\" ;;\n";
  }
  return "# bash completion of samba: source <(samba completion bash)\n"
         "_samba() {\n"
         "    local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\" command=\"\" flags=\"\" "
         "i\n"
         "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "        case \" " +
         commands +
         " \" in *\" ${COMP_WORDS[i]} \"*) command=\"${COMP_WORDS[i]}\"; break ;; esac\n"
         "    done\n"
         "    case \"$before\" in\n"
         "        --device) COMPREPLY=($(compgen -W \"auto cpu reference cuda hip\" -- \"$word\")); return ;;\n"
         "        --numeric-mode) COMPREPLY=($(compgen -W \"identical deterministic fast\" -- \"$word\")); return ;;\n"
         "        --progress) COMPREPLY=($(compgen -W \"auto always never\" -- \"$word\")); return ;;\n"
         "        --log-level) COMPREPLY=($(compgen -W \"trace debug info warn error off\" -- \"$word\")); return ;;\n"
         "    esac\n"
         "    if [[ -z $command && $word != -* ]]; then\n"
         "        COMPREPLY=($(compgen -W \"" +
         commands +
         "\" -- \"$word\")); return\n"
         "    fi\n"
         "    case \"$command\" in\n" +
         cases +
         "    esac\n"
         "    if [[ $word == -* ]]; then\n"
         "        COMPREPLY=($(compgen -W \"$flags " +
         flag_names(app) +
         "\" -- \"$word\"))\n"
         "    else\n"
         "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "    fi\n"
         "}\n"
         "complete -o filenames -F _samba samba\n";
}

int print_script(const CLI::App& app, const std::string& shell) {
  const std::string script = bash_script(app);
  if (shell == "bash") {
    print(script);
  } else {
    // zsh reads the same function through its emulation of bash's completion.
    print(
        "#compdef samba\n# zsh completion of samba: source <(samba completion zsh)\n"
        "autoload -U +X compinit && compinit -i\nautoload -U +X bashcompinit && bashcompinit\n" +
        script);
  }
  return 0;
}

}  // namespace

void add_completion_command(CLI::App& app, CommandLine& line) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "print a completion script for bash or zsh");
  command->add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  line.on(command, "source <(samba completion bash)", [shell, &app] { return print_script(app, *shell); });
}

}  // namespace samba::apps
