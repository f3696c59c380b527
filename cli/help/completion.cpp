// mtl completion SHELL: what makes a shell ask `mtl __complete` (complete.h) at the Tab key. The
// scripts know nothing of mtl's commands, so they fit every version of it.
#include "cli/help/completion.h"

#include <cstdio>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"

namespace mtl {

namespace {

// Readline takes = and : for ends of words, so COMP_WORDS are pieces: they are put together where
// no blank is between them, and what stands before the last piece is cut off the answers.
constexpr const char* kBash = R"script(# bash completion for mtl: mtl completion bash
_mtl() {
  local rest=${COMP_LINE:0:COMP_POINT} typed=$2 words=() starts=() piece i
  for ((i = 0; i <= COMP_CWORD; i++)); do
    piece=${COMP_WORDS[i]}
    if [[ $i == 0 || $rest == [[:space:]]* ]]; then
      rest=${rest#"${rest%%[![:space:]]*}"}
      words+=('')
      starts+=("$i")
    fi
    [[ $i != "$COMP_CWORD" ]] || piece=$rest
    rest=${rest#"$piece"}
    words[${#words[@]} - 1]+=${piece//[\\\"\']/}
  done
  local before=${words[${#words[@]} - 1]}
  before=${before%"${typed//[\\\"\']/}"}

  local line name suffix found=() wanted=()
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files*)
        compopt -o filenames
        mapfile -t found < <(compgen -f -- "$typed")
        for name in "${found[@]}"; do
          for suffix in ${line#:files}; do
            [[ $name != *."$suffix" ]] || wanted+=("$name")
          done
        done
        if ((${#wanted[@]} > 0)); then
          mapfile -t -O "${#wanted[@]}" wanted < <(compgen -d -- "$typed")
          COMPREPLY+=("${wanted[@]}")
        else
          COMPREPLY+=("${found[@]}")
        fi
        ;;
      :folders)
        compopt -o filenames
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$typed")
        ;;
      :programs)
        compopt -o filenames
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -- "$typed")
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$typed")
        ;;
      :command*)
        if declare -F _command_offset >/dev/null; then
          _command_offset "${starts[${line#:command }]}"
        else
          compopt -o bashdefault -o default
        fi
        return
        ;;
      *)
        line=${line%%$'\t'*}
        line=${line#"$before"}
        [[ ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]] || printf -v line %q "$line"
        COMPREPLY+=("$line")
        ;;
    esac
  done < <("${words[0]/#\~\//$HOME/}" __complete "${words[@]:1}" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace; fi
}
complete -F _mtl mtl
)script";

constexpr const char* kZsh = R"script(#compdef mtl
# zsh completion for mtl: mtl completion zsh
_mtl() {
  local line word what shell
  local -a closed open
  for line in "${(@f)$(${(Q)~words[1]} __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
    case $line in
      ('') ;;
      (:*) shell=$line ;;
      (*)
        word=${line%%$'\t'*}
        what=${line#$word}
        what=${what#$'\t'}
        word=${word//:/\\:}${what:+:$what}
        case ${line%%$'\t'*} in
          (*[=.]) open+=("$word") ;;
          (*) closed+=("$word") ;;
        esac
        ;;
    esac
  done
  local -i found=1
  (( $#open == 0 )) || _describe -t values mtl open -S '' && found=0
  (( $#closed == 0 )) || _describe -t values mtl closed && found=0
  case $shell in
    (:files*)
      compset -P '*='
      if [[ $shell == ':files' ]]; then
        _files && found=0
      else
        _files -g "*.(${${shell#:files }// /|})(-.)" && found=0
      fi
      ;;
    (:folders) _files -/ && found=0 ;;
    (:programs) _command_names -e && found=0; _files && found=0 ;;
    (:command*)
      shift ${shell#:command } words
      (( CURRENT -= ${shell#:command } ))
      _normal && found=0
      ;;
  esac
  return found
}
if [[ $funcstack[1] == _mtl ]]; then _mtl "$@"; else compdef _mtl mtl; fi
)script";

constexpr const char* kFish = R"script(# fish completion for mtl: mtl completion fish
function __mtl_complete
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    # In key=FILE and --option=FILE the name of the file begins behind the =.
    set -l head (string match -r -- '^[^=]*=' $typed; or echo '')
    set -l tail (string replace -r -- '^[^=]*=' '' $typed)
    set -l mtl (string replace -r -- '^~/' "$HOME/" $before[1])
    type -q $mtl; or return
    for line in ($mtl __complete $before[2..] (string unescape -- "$typed"; or echo "$typed") 2>/dev/null)
        switch $line
            case ':files*'
                set -l found (complete -C "'' $tail" | string replace -r -- '\t.*' '')
                set -l wanted
                for suffix in (string split -n ' ' -- (string sub -s 8 -- $line))
                    set -a wanted (string match -- "*.$suffix" $found)
                end
                if set -q wanted[1]
                    set found $wanted (string match -- '*/' $found)
                end
                string join -n \n -- $head$found
            case ':folders'
                string join -n \n -- $head(__fish_complete_directories $tail '')
            case ':programs'
                complete -C "$typed"
            case ':command*'
                set -l at (math (string replace ':command ' '' -- $line) + 1)
                complete -C (string join ' ' -- (string escape -- $before[$at..]) $typed)
            case '*'
                echo $line
        end
    end
end
complete -c mtl -f -k -a '(__mtl_complete)'
)script";

}  // namespace

const std::vector<CompletionScript>& completion_scripts() {
  static const std::vector<CompletionScript> kScripts = {
      {"bash", kBash, "bash-completion/completions/mtl"},
      {"zsh", kZsh, "zsh/vendor-completions/_mtl"},
      {"fish", kFish, "fish/vendor_completions.d/mtl.fish"},
  };
  return kScripts;
}

int command_completion(const Arguments& args) {
  std::string shell;
  CommandLine line({"completion SHELL"},
                   "Prints a script with which bash, zsh or fish complete what is typed behind "
                   "mtl: commands, options and their values, keys of a train.yaml, runs, recipes "
                   "and files. Where mtl is installed as a package they have it already.");
  line.example("source <(mtl completion bash)", "in ~/.bashrc");
  line.example("source <(mtl completion zsh)", "in ~/.zshrc, behind compinit");
  line.example("mtl completion fish > ~/.config/fish/completions/mtl.fish", "once");
  line.positional("bash | zsh | fish", shell, "the shell that is to complete");
  if (!line.parse(args)) return 0;
  for (const CompletionScript& script : completion_scripts()) {
    if (script.shell != shell) continue;
    std::fputs(script.text, stdout);
    return 0;
  }
  throw Error(Exit::usage,
              {.code = "usage.value",
               .what = fmt::format("mtl completes in bash, zsh and fish, not in '{}'", shell),
               .help = "see: mtl completion --help"});
}

}  // namespace mtl
