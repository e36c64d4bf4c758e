#include "cli/completion.h"

#include <fmt/format.h>

namespace tutti::cli {
namespace {

constexpr Verb kVerbs[] = {
    {"run", "--set --resume -o --help", true},
    {"plan", "--set -o --coordinator --token-file --help", true},
    {"config", "--set -o --help", true},
    {"explain", "--help", false},
    {"schema", "--help", false},
    {"submit", "--set --resume --uid --follow --dry-run -o --coordinator --token-file --help", true},
    {"get", "jobs job nodes node --filter --limit --watch -o --coordinator --token-file --help", false},
    {"describe", "job node -o --coordinator --token-file --help", false},
    {"logs", "-f --follow --rank --attempt --tail-bytes --coordinator --token-file --help", false},
    {"cancel", "--force -o --coordinator --token-file --help", false},
    {"verify", "-o --coordinator --token-file --help", true},
    {"nodes", "-o --coordinator --token-file --help", false},
    {"version", "-o --coordinator --token-file --help", false},
    {"completion", "bash zsh --help", false},
};

}  // namespace

std::span<const Verb> Verbs() { return kVerbs; }

std::vector<std::string> VerbNames() {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  return names;
}

std::string CompletionScript(std::string_view shell) {
  if (shell != "bash" && shell != "zsh") return "";
  std::string verbs, cases;
  for (const Verb& verb : kVerbs) {
    verbs += fmt::format("{}{}", verbs.empty() ? "" : " ", verb.name);
    cases += fmt::format("    {}) words=\"{}\"; files={} ;;\n", verb.name, verb.words, verb.takes_file ? 1 : 0);
  }
  std::string script = shell == "zsh" ? "autoload -Uz bashcompinit && bashcompinit\n" : "";
  script +=
      "_tutti() {\n  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" words "
      "files=0\n";
  script += "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"" + verbs +
            "\" -- \"$current\"))\n    return\n  fi\n";
  script +=
      "  case \"$previous\" in\n    -o) COMPREPLY=($(compgen -W \"json yaml wide\" -- \"$current\")); return ;;\n";
  script += "    --token-file) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n  esac\n";
  script += "  case \"${COMP_WORDS[1]}\" in\n" + cases + "  esac\n";
  script += "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n";
  script +=
      "  if [ \"$files\" -eq 1 ]; then COMPREPLY+=($(compgen -f -- \"$current\")); fi\n}\ncomplete -o filenames -F "
      "_tutti tutti\n";
  return script;
}

}  // namespace tutti::cli
