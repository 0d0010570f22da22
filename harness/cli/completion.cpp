// harness completion: a script for the shell, made of the options that the program has.
#include <CLI/CLI.hpp>
#include <iostream>

#include "harness/cli/cli.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string options_of(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) out += "--" + name + ' ';
  }
  return out;
}

// The program says what devices and blocks there are when the word is completed.
constexpr const char* kScript = R"script(
  case $previous in
    --device) values=$(harness devices 2>/dev/null | awk '$2 == "usable" {print $1}') ;;
    --block) values=$(harness list --blocks 2>/dev/null | awk '/^[a-z]/ {print $1}') ;;
    --dtype) values="f32 bf16 f16" ;;
    --mode) values="isolated chained both" ;;
    --log-level) values="error warning info debug" ;;
    --fixture | --json | --junit | --markdown | --journal | --log | --plugin | --out)
      COMPREPLY=($(compgen -f -- "$word"))
      return ;;
    help) values=$commands ;;
    *) values="$options $([[ -n $command ]] || printf %s "$commands")" ;;
  esac
  COMPREPLY=($(compgen -W "$values" -- "$word"))
}
complete -F _harness harness
)script";

std::string script(const CLI::App& program) {
  std::string commands, cases;
  for (const CLI::App* command : program.get_subcommands({})) {
    const std::string& name = command->get_name();
    commands += name + ' ';
    cases +=
        text("      ", name, ") command=", name, " options=\"", options_of(*command), "\" ;;\n");
  }
  return text("_harness() {\n",
              "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n",
              "  local command='' values='' given commands=\"", commands, "\"\n",
              "  local options=\"", options_of(program), "\"\n",
              "  for given in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n", "    case $given in\n",
              cases, "    esac\n", "  done", kScript);
}

}  // namespace

Action add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  app.footer(
      "bash: eval \"$(harness completion bash)\" in ~/.bashrc\n"
      "zsh:  eval \"$(harness completion zsh)\" in ~/.zshrc");
  return [shell, program = app.get_parent()] {
    if (*shell == "zsh") std::cout << "autoload -U +X bashcompinit && bashcompinit\n";
    std::cout << script(*program);
    return 0;
  };
}

}  // namespace plumb::harness
