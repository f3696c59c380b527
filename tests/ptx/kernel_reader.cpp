#include "ptx/kernel_reader.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "ptx/reader.h"

namespace mtl::ptx {

namespace {

constexpr std::pair<std::string_view, Special> kSpecials[] = {
    {"%tid.x", Special::tid_x},
    {"%tid.y", Special::tid_y},
    {"%tid.z", Special::tid_z},
    {"%ctaid.x", Special::ctaid_x},
    {"%ctaid.y", Special::ctaid_y},
    {"%ctaid.z", Special::ctaid_z},
    {"%ntid.x", Special::ntid_x},
    {"%ntid.y", Special::ntid_y},
    {"%ntid.z", Special::ntid_z},
    {"%nctaid.x", Special::nctaid_x},
    {"%nctaid.y", Special::nctaid_y},
    {"%nctaid.z", Special::nctaid_z},
    {"%laneid", Special::laneid},
    {"%warpid", Special::warpid},
    {"%lanemask_lt", Special::lanemask_lt}};

// Takes one kernel apart.
class KernelReader {
 public:
  KernelReader(const Module& module, std::string_view text, int line)
      : module_(module), reader_(text, line) {}

  Kernel read() {
    reader_.word();  // ".entry"
    kernel_.name = reader_.word();
    if (reader_.take('(')) read_parameters();
    while (!reader_.take('{')) read_directive();
    scopes_.emplace_back();
    read_body();
    finish();
    return std::move(kernel_);
  }

 private:
  struct Register {
    File file;
    int index;
    bool half;
  };
  struct Scope {
    std::unordered_map<std::string_view, Register> registers;
    std::unordered_map<std::string_view, int> labels;
    std::vector<std::pair<size_t, size_t>> jumps;  // instruction and operand
  };

  void read_parameters() {
    while (!reader_.take(')')) {
      if (reader_.word() != ".param")
        not_understood(reader_.line(), kernel_.name, "not a parameter of");
      const Variable one = variable(reader_);
      const size_t offset = aligned(kernel_.parameter_bytes, one.align);
      kernel_.parameters.push_back({std::string(one.name), offset, one.bytes});
      kernel_.parameter_bytes = offset + one.bytes;
      symbols_[one.name] = offset;
      reader_.take(',');
    }
  }
  void read_directive() {
    const std::string_view name = reader_.word();
    const std::string_view rest = reader_.until(".{");
    if (name == ".maxntid" || name == ".reqntid") {
      unsigned threads = 1;
      for (size_t begin = 0; begin < rest.size();) {
        const size_t end = std::min(rest.find(',', begin), rest.size());
        threads *=
            static_cast<unsigned>(number(trimmed(rest.substr(begin, end - begin)), reader_.line()));
        begin = end + 1;
      }
      kernel_.most_threads = threads;
    } else if (name != ".minnctapersm" && name != ".maxnreg") {
      not_understood(reader_.line(), name, "unknown directive");
    }
  }

  void read_body() {
    while (!scopes_.empty()) {
      if (reader_.take('}')) {
        close_scope();
      } else if (reader_.take('{')) {
        scopes_.emplace_back();
      } else if (reader_.take(';')) {
        continue;
      } else {
        read_statement();
      }
    }
  }
  void read_statement() {
    const int line = reader_.line();
    const char first = reader_.peek();
    const size_t begin = reader_.at();
    Instruction instruction;
    instruction.line = line;
    if (first == '@') {
      reader_.take('@');
      instruction.guard_negated = reader_.take('!');
      const Register guard = find_register(reader_.word());
      if (guard.file != File::predicate) not_understood(line, reader_.from(begin), "guard");
      instruction.guard = guard.index;
    }
    const std::string_view word = reader_.word();
    if (word.ends_with(':')) {
      scopes_.back().labels[word.substr(0, word.size() - 1)] =
          static_cast<int>(kernel_.instructions.size());
      return;
    }
    if (word.starts_with('.')) return read_declaration(word);
    instruction.opcode = word;
    while (reader_.peek() != ';') {
      instruction.operands.push_back(read_operand());
      reader_.take(',');
    }
    instruction.text = trimmed(reader_.from(begin));
    reader_.want(';');
    add(std::move(instruction));
  }
  void add(Instruction instruction) {
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      if (instruction.operands[i].kind == Operand::Kind::label) {
        scopes_.back().jumps.emplace_back(kernel_.instructions.size(), i);
      }
    }
    Opcode opcode;
    const std::string_view name = instruction.opcode;
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = std::min(name.find('.', begin), name.size());
      opcode.push_back(name.substr(begin, end - begin));
      begin = end + 1;
    }
    instruction.aligned = std::find(opcode.begin(), opcode.end(), "aligned") != opcode.end() ||
                          (opcode.front() == "bar" && opcode.size() > 1 && opcode[1] != "warp");
    for (const auto find :
         {find_control, find_arithmetic, find_memory, find_tensor_cores, find_asynchronous}) {
      instruction.run = find(opcode, instruction);
      if (instruction.run != nullptr) break;
    }
    if (instruction.run == nullptr) {
      not_understood(instruction.line, instruction.text, "not known how to run");
    }
    kernel_.instructions.push_back(std::move(instruction));
  }

  void read_declaration(std::string_view name) {
    if (name == ".reg") {
      const std::string_view type = reader_.word();
      do {
        const std::string_view one = reader_.word();
        int count = 1;
        if (reader_.take('<')) {
          count = static_cast<int>(number(reader_.word(), reader_.line()));
          reader_.want('>');
          ranges_.push_back({one, type, count, new_registers(type, count)});
        } else {
          const Register made{file_of(type), new_registers(type, 1), type.ends_with("16")};
          scopes_.back().registers[one] = made;
        }
      } while (reader_.take(','));
    } else if (name == ".local") {
      const Variable one = variable(reader_);
      const size_t offset = aligned(kernel_.local_bytes, one.align);
      symbols_[one.name] = offset;
      kernel_.local_bytes = offset + one.bytes;
    } else if (name == ".shared") {
      add_shared(variable(reader_));
    } else if (name == ".pragma" || name == ".loc") {
      reader_.until(name == ".loc" ? "\n" : ";");
      if (name == ".loc") return;
    } else {
      not_understood(reader_.line(), name, "unknown declaration");
    }
    reader_.want(';');
  }
  void add_shared(const Variable& one) {
    const size_t offset = aligned(kernel_.static_shared, one.align);
    symbols_[one.name] = offset;
    kernel_.static_shared = offset + one.bytes;
  }

  static File file_of(std::string_view type) {
    return type == ".pred" ? File::predicate : type.ends_with("64") ? File::wide : File::narrow;
  }
  int new_registers(std::string_view type, int count) {
    const File file = file_of(type);
    int& used = file == File::predicate ? kernel_.predicates
                : file == File::wide    ? kernel_.wides
                                        : kernel_.narrows;
    used += count;
    return used - count;
  }
  bool find_register(std::string_view name, Register& found) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto at = scope->registers.find(name); at != scope->registers.end()) {
        found = at->second;
        return true;
      }
    }
    for (const Range& range : ranges_) {
      if (!name.starts_with(range.prefix)) continue;
      const std::string_view digits = name.substr(range.prefix.size());
      int index = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), index);
      if (error != std::errc() || end != digits.data() + digits.size() || index >= range.count) {
        continue;
      }
      found = {file_of(range.type), range.first + index, range.type.ends_with("16")};
      return true;
    }
    return false;
  }
  Register find_register(std::string_view name) {
    Register found{};
    if (!find_register(name, found)) not_understood(reader_.line(), name, "unknown register");
    return found;
  }

  Operand read_operand() {
    Operand operand;
    if (reader_.take('{')) {
      operand.kind = Operand::Kind::list;
      while (!reader_.take('}')) {
        operand.parts.push_back(read_operand());
        reader_.take(',');
      }
    } else if (reader_.take('[')) {
      operand = read_address();
    } else {
      operand = read_simple();
      if (reader_.take('|')) {  // two results
        Operand both;
        both.kind = Operand::Kind::list;
        both.parts = {operand, read_simple()};
        return both;
      }
    }
    return operand;
  }
  Operand read_address() {
    Operand operand = read_simple();
    if (operand.kind == Operand::Kind::constant) {  // a symbol, or nothing else
      operand.index = operand.wide;
      operand.file = File::wide;
    }
    operand.kind = Operand::Kind::address;
    if (reader_.take('+')) {
      operand.offset = static_cast<int64_t>(number(signed_word(), reader_.line()));
    }
    while (reader_.take(',')) operand.parts.push_back(read_operand());
    reader_.want(']');
    return operand;
  }
  std::string_view signed_word() {
    const size_t begin = (reader_.peek(), reader_.at());
    reader_.take('-');
    reader_.word();
    return reader_.from(begin);
  }
  Operand read_simple() {
    Operand operand;
    operand.negated = reader_.take('!');
    const std::string_view word = signed_word();
    Register found{};
    if (word == "_") return operand;
    if (find_register(word, found)) {
      operand.kind = Operand::Kind::value;
      operand.file = found.file;
      operand.index = found.index;
      operand.half = found.half;
    } else if (const char c = word.front(); c == '-' || (c >= '0' && c <= '9')) {
      operand = constant(number(word, reader_.line()));
    } else if (const auto symbol = find_symbol(word)) {
      operand = constant(*symbol);
    } else if (word.starts_with('%')) {
      operand = special(word);
    } else {
      operand.kind = Operand::Kind::label;  // until its scope is closed
    }
    return operand;
  }
  std::optional<uint64_t> find_symbol(std::string_view name) {
    if (const auto at = symbols_.find(name); at != symbols_.end()) return at->second;
    const auto shared = module_.shared().find(name);
    if (shared == module_.shared().end()) return {};
    if (shared->second.dynamic) return kDynamic;
    add_shared({shared->first, shared->second.align, shared->second.bytes, false});
    return symbols_[shared->first];
  }
  Operand constant(uint64_t bits) {
    Operand operand;
    operand.kind = Operand::Kind::constant;
    operand.bits = bits;
    const auto [at, added] = constants_.try_emplace(bits, kernel_.narrows, kernel_.wides);
    operand.narrow = at->second.first;
    operand.wide = at->second.second;
    if (added) {
      ++kernel_.narrows;
      ++kernel_.wides;
      kernel_.constants.narrow.emplace_back(operand.narrow, static_cast<uint32_t>(bits));
      kernel_.constants.wide.emplace_back(operand.wide, bits);
    }
    return operand;
  }
  Operand special(std::string_view name) {
    const auto* const known = std::find_if(std::begin(kSpecials), std::end(kSpecials),
                                           [&](const auto& one) { return one.first == name; });
    if (known == std::end(kSpecials)) not_understood(reader_.line(), name, "unknown register");
    Operand operand;
    operand.kind = Operand::Kind::value;
    for (const auto& [special, index] : kernel_.specials) {
      if (special == known->second) operand.index = index;
    }
    if (operand.index < 0) {
      operand.index = kernel_.narrows++;
      kernel_.specials.emplace_back(known->second, operand.index);
    }
    return operand;
  }

  // Jumps within a scope are to labels of it or of those around it.
  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const auto& [at, i] : scope.jumps) {
      Instruction& instruction = kernel_.instructions[at];
      std::string_view name = instruction.text;
      name = trimmed(name.substr(name.find_last_of(" \t") + 1));
      const auto label = scope.labels.find(name);
      if (label != scope.labels.end()) {
        instruction.operands[i].index = label->second;
      } else if (!scopes_.empty()) {
        scopes_.back().jumps.emplace_back(at, i);
      } else {
        not_understood(instruction.line, instruction.text, "unknown name");
      }
    }
  }
  void finish() {
    kernel_.dynamic_shared = aligned(kernel_.static_shared, 128);
    // The dynamic memory's address is known only now.
    if (const auto at = constants_.find(kDynamic); at != constants_.end()) {
      for (auto& [index, value] : kernel_.constants.narrow) {
        if (index == at->second.first) value = static_cast<uint32_t>(kernel_.dynamic_shared);
      }
      for (auto& [index, value] : kernel_.constants.wide) {
        if (index == at->second.second) value = kernel_.dynamic_shared;
      }
    }
    const auto end = static_cast<int>(kernel_.instructions.size());
    for (const Instruction& instruction : kernel_.instructions) {
      for (const Operand& operand : instruction.operands) {
        if (operand.kind == Operand::Kind::label && operand.index >= end) {
          not_understood(instruction.line, instruction.text, "nothing behind the label of");
        }
      }
    }
  }

  // No number of a program: stands for the address of dynamic shared memory until that is known.
  static constexpr uint64_t kDynamic = 0x6d746c20'64796e61;

  struct Range {
    std::string_view prefix, type;
    int count, first;
  };

  const Module& module_;
  Reader reader_;
  Kernel kernel_;
  std::vector<Scope> scopes_;
  std::vector<Range> ranges_;
  std::unordered_map<std::string_view, size_t> symbols_;
  std::unordered_map<uint64_t, std::pair<int, int>> constants_;
};

}  // namespace

Kernel read_kernel(const Module& module, std::string_view text, int line) {
  return KernelReader(module, text, line).read();
}

}  // namespace mtl::ptx
