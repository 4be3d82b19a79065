"""First names with their pronouns."""

from __future__ import annotations

from dataclasses import dataclass

from paths.models.train.problems.split import held_out

_WOMEN = """
Ada Agnes Aisha Alice Alma Amara Amy Anika Anna Astrid Ava Beatrice Bella Bianca Brenda Carla Carmen Cecilia
Chloe Clara Daisy Dana Daria Diana Doris Edith Elena Elif Elise Ella Emily Emma Erica Esther Eva Fatima
Fiona Flora Freya Gemma Gina Grace Greta Hana Hannah Hazel Heidi Helen Ida Ines Ingrid Irene Iris Isabel Ivy
Jade Jana Jane Jasmine Joan Judith Julia June Karen Kate Katya Keiko Kim Lara Laura Layla Leah Lena Lily
Linda Lisa Lola Lucy Luna Mabel Maria Marta Mary Maya Mei Mia Mila Mina Molly Mona Nadia Naomi Nina Nora
Olga Olive Paula Pearl Petra Phoebe Priya Rachel Rita Rosa Ruby Ruth Sadie Salma Sara Selma Sofia Stella
Susan Sylvia Tamara Tanya Tara Tess Tilda Uma Vera Victoria Viola Wanda Willa Yara Yasmin Yuki Zara Zelda
Zoe
"""
_MEN = """
Aaron Adam Adrian Ahmed Alan Albert Alex Amir Andre Anton Arthur Axel Basil Ben Bill Boris Bruno Caleb Carl
Carlos Cedric Chen Chris Cyrus Dan David Dennis Dev Diego Dylan Edgar Eli Emil Eric Ethan Felix Finn Frank
Fred Gabriel George Gus Hans Hari Harry Hector Henry Hugo Ian Ibrahim Igor Isaac Ivan Jack Jacob Jake James
Jamal Jason Joel John Jonas Jorge Jose Juan Karl Kenji Kevin Khalid Kofi Kurt Kyle Lars Leo Leon Levi Liam
Louis Lucas Luis Luke Magnus Malik Marco Mark Martin Matt Max Miguel Mike Milo Mohan Nate Ned Neil Nico Noah
Olaf Oliver Omar Oscar Otto Owen Pablo Paul Pedro Peter Philip Quinn Rafael Raj Ralph Ravi Ray Reza Rico Rob
Roman Rory Ryan Sam Samir Scott Sean Sergei Simon Stefan Steve Tariq Theo Thomas Tim Tobias Tom Tony Umar
Victor Vikram Walter Wei Will Xavier Yusuf Zack
"""


@dataclass(frozen=True)
class Person:
    """A name and how to refer to it."""

    name: str
    she: str
    her: str

    def __str__(self) -> str:
        return self.name

    @property
    def She(self) -> str:
        return self.she.capitalize()


PEOPLE = tuple(
    [Person(name, "she", "her") for name in _WOMEN.split()]
    + [Person(name, "he", "his") for name in _MEN.split()]
)
TEST_PEOPLE = tuple(person for person in PEOPLE if held_out("name", person.name))
TRAIN_PEOPLE = tuple(person for person in PEOPLE if not held_out("name", person.name))
