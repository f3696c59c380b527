// What the registers of products may be used for, and what the warps of a warpgroup do alike
// ("Async proxy", wgmma.fence, wgmma.wait_group).
#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "ptx/tensor_cores.h"

namespace mtl::ptx {

namespace {

constexpr size_t kGroup = 4;  // warps

bool is_product(const Instruction& instruction) {
  return instruction.opcode.starts_with("wgmma.mma_async.");
}
bool is_register(const Operand& operand) {
  return operand.kind == Operand::Kind::value && operand.file == File::narrow;
}
// Whether its first operand is no result.
bool has_no_result(const Instruction& instruction) {
  return instruction.opcode.starts_with("bar.") || instruction.opcode.starts_with("setmaxnreg.");
}

template <typename Body>
void for_registers(const Operand& operand, bool writes, Body body) {
  const bool is_address = operand.kind == Operand::Kind::address;
  if (is_register(operand) || (is_address && operand.file == File::narrow)) {
    body(operand.index, writes && !is_address);
  }
  for (const Operand& part : operand.parts) for_registers(part, writes && !is_address, body);
}

RegisterUses uses_of(const Kernel& kernel) {
  std::vector<char> is_used(static_cast<size_t>(kernel.narrows), 0);
  const auto use = [&](const Operand& operand) {
    for_registers(operand, false,
                  [&](int index, bool) { is_used[static_cast<size_t>(index)] = 1; });
  };
  for (const Instruction& instruction : kernel.instructions) {
    if (!is_product(instruction)) continue;
    use(instruction.operands[0]);
    use(instruction.operands[1]);
  }
  RegisterUses result;
  for (const Instruction& instruction : kernel.instructions) {
    result.begin.push_back(static_cast<uint32_t>(result.uses.size()));
    if (is_product(instruction)) continue;  // use_registers()
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      for_registers(instruction.operands[i], i == 0 && !has_no_result(instruction),
                    [&](int index, bool writes) {
                      if (is_used[static_cast<size_t>(index)] != 0) {
                        result.uses.push_back({index, writes});
                      }
                    });
    }
  }
  result.begin.push_back(static_cast<uint32_t>(result.uses.size()));
  return result;
}

std::string text_of(const Products::Mark& mark) {
  return mark.part == Products::Part::sums
             ? fmt::format("sum {} of a product of {} columns", mark.at, mark.columns)
             : fmt::format("element {} of A", mark.at);
}

bool is_under_way(const Products& products, const Products::Mark& mark) {
  return mark.group > products.done;
}
bool is_same(const Products::Mark& one, const Products::Mark& other) {
  return one.part == other.part && one.columns == other.columns && one.at == other.at;
}

}  // namespace

void fence_registers(Warp& warp) {
  Products& products = warp.products();
  ++products.fences;
  if (products.uses != nullptr) return;
  const Kernel& kernel = *warp.block().launch().kernel;
  // One for all warps of the block.
  for (const auto& other : warp.block().warps()) {
    if (other->products().uses != nullptr) products.uses = other->products().uses;
  }
  if (products.uses == nullptr) products.uses = std::make_shared<RegisterUses>(uses_of(kernel));
  const auto count = static_cast<size_t>(kernel.narrows);
  products.marks.resize(count);
  products.read.resize(count);
  products.written.resize(count);
}

void use_registers(Warp& warp, const Instruction& instruction, unsigned columns,
                   bool left_in_registers) {
  Products& products = warp.products();
  if (products.fences == 0) fail(warp, instruction, "no wgmma.fence before the first product");
  const auto use = [&](const std::vector<Operand>& registers, Products::Part part) {
    const bool is_sums = part == Products::Part::sums;
    for (size_t i = 0; i < registers.size(); ++i) {
      const auto at = static_cast<size_t>(registers[i].index);
      Products::Mark& mark = products.marks[at];
      const Products::Mark next = {products.committed + 1, products.fences, part,
                                   static_cast<int>(columns), static_cast<int>(i)};
      // Sums at the same place of the same shape are in order; A may be read twice.
      const bool goes_on = is_sums ? is_same(mark, next) : mark.part == Products::Part::left;
      if (is_under_way(products, mark) && !goes_on) {
        fail(warp, instruction,
             fmt::format("{}: its register is {}, which nobody has waited for", text_of(next),
                         text_of(mark)));
      }
      if (products.written[at] == products.fences ||
          (is_sums && products.read[at] == products.fences)) {
        fail(warp, instruction,
             fmt::format("{}: another instruction has touched its register "
                         "since the last wgmma.fence",
                         text_of(next)));
      }
      if (mark.part != Products::Part::none && mark.fence == products.fences && !goes_on) {
        fail(warp, instruction,
             fmt::format("{}: its register is {}, and no wgmma.fence since", text_of(next),
                         text_of(mark)));
      }
      mark = next;
    }
  };
  if (left_in_registers) use(instruction.operands[1].parts, Products::Part::left);
  use(instruction.operands[0].parts, Products::Part::sums);
  products.issued = products.committed + 1;
}

void check_registers(Warp& warp, const Instruction& instruction) {
  Products& products = warp.products();
  const RegisterUses& all = *products.uses;
  const auto at =
      static_cast<size_t>(&instruction - warp.block().launch().kernel->instructions.data());
  const uint32_t begin = all.begin[at], end = all.begin[at + 1];
  if (begin == end) return;
  for (uint32_t i = begin; i < end; ++i) {
    const auto index = static_cast<size_t>(all.uses[i].index);
    const Products::Mark& mark = products.marks[index];
    if (is_under_way(products, mark)) {
      fail(warp, instruction,
           fmt::format("{} {}, which nobody has waited for",
                       all.uses[i].writes ? "writes" : "reads", text_of(mark)));
    }
    (all.uses[i].writes ? products.written : products.read)[index] = products.fences;
  }
}

void follow(Warp& warp, const Instruction& instruction, const Common& common) {
  const auto& warps = warp.block().warps();
  const size_t first = warp.index() / kGroup * kGroup;
  if (first + kGroup > warps.size()) fail(warp, instruction, "a warpgroup has four warps");
  Products& shared = warps[first]->products();
  uint64_t& at = warp.products().common_at;
  if (at == shared.common_begin + shared.common.size()) {
    shared.common.push_back(common);
  } else {
    const Common& other = shared.common[at - shared.common_begin];
    if (other.instruction != common.instruction) {
      fail(warp, instruction,
           fmt::format("another warp of its warpgroup was here at line {} ({})",
                       other.instruction->line, other.instruction->text));
    }
    if (other.left != common.left || other.right != common.right || other.adds != common.adds) {
      fail(warp, instruction, "warps of the warpgroup have different descriptors or scale-d");
    }
  }
  ++at;
  uint64_t least = at;
  for (size_t i = 0; i < kGroup; ++i) {
    least = std::min(least, warps[first + i]->products().common_at);
  }
  for (; shared.common_begin < least; ++shared.common_begin) shared.common.pop_front();
}

void products_ended(Block& block) {
  const auto& warps = block.warps();
  const auto refuse = [&](const Warp& warp, const char* what) {
    throw std::runtime_error(fmt::format("{}, block {}, warp {}: {}", block.launch().kernel->name,
                                         block.index().x, warp.index(), what));
  };
  for (size_t i = 0; i < warps.size(); ++i) {
    const Products& products = warps[i]->products();
    if (products.issued > products.done) {
      refuse(*warps[i], "has ended with products that it has not waited for");
    }
    if (products.common_at != warps[i / kGroup * kGroup]->products().common_at) {
      refuse(*warps[i], "has ended with fewer or more products than others of its warpgroup");
    }
  }
}

}  // namespace mtl::ptx
