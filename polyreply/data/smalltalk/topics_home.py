"""Topics of the house: food, rooms, repairs, pets, garden."""

from polyreply.data.smalltalk.topic import Slot, Topic

HOME = (
    Topic(
        name="cooking",
        doing="cooking {dish}",
        thing="the {dish}",
        slots={
            "dish": Slot(
                train="""lasagna, curry, risotto, paella, goulash, dumplings, moussaka, chilli, fish stew,
                    ramen""",
                valid="gnocchi, couscous, ratatouille",
                test="shepherd's pie, pancakes, gumbo",
            )
        },
        train=(
            "I'm cooking {dish} for {name} {day}.",
            "I seem to be cooking {dish} {hour}, whether anybody is hungry or not.",
            "My {kin} keeps asking me to cook {dish}, so {day} I'll do it again.",
            "Since I moved to {place} I've been teaching myself to cook {dish}.",
            "After all these years I still need {name} beside me when I cook {dish}.",
        ),
        valid=("{name} and I have agreed that I'll cook {dish} {day}.",),
        test=("It will be my turn to cook {dish} {day}, or so {name} tells me.",),
    ),
    Topic(
        name="baking",
        doing="baking {bake}",
        thing="the {bake}",
        slots={
            "bake": Slot(
                train="""bread, scones, cinnamon rolls, carrot cake, apple pie, shortbread, muffins, almond
                    biscuits""",
                valid="cheesecake, brownies, rye rolls",
                test="croissants, gingerbread, plum tart",
            )
        },
        train=(
            "My kitchen is full of flour, because I've started baking {bake} {hour}.",
            "I told {name} that I'd bake {bake} {day}.",
            "The whole street in {place} knows that I bake {bake} {hour}.",
            "This is the third time I'm baking {bake} for my {friend}.",
        ),
        valid=("Baking {bake} has become my job in the family, and {day} {name} expects a lot of it.",),
        test=("There's a fair {day}, so {name} has talked me into baking {bake}.",),
    ),
    Topic(
        name="drinks",
        doing="making {drink}",
        thing="the {drink}",
        slots={
            "drink": Slot(
                train="""lemonade, herbal tea, iced coffee, cider, ginger beer, hot chocolate, elderflower
                    cordial""",
                valid="mint tea, plum wine, cold brew",
                test="kombucha, mulled wine, mango lassi",
            )
        },
        train=(
            "I've gone from buying {drink} to making my own {hour}.",
            "For the party {day} I'm making {drink} with {name}.",
            "It was my {kin} who got me into making {drink}.",
            "We don't have much to do here in {place}, so I make {drink} {hour}.",
        ),
        valid=("With {name} coming over {day}, I suppose I'll be making {drink}.",),
        test=("I make {drink} {hour}, and {name} is the one who has to taste it.",),
    ),
    Topic(
        name="garden",
        doing="growing {crop}",
        thing="the {crop}",
        slots={
            "crop": Slot(
                train="tomatoes, roses, pumpkins, strawberries, beans, tulips, potatoes, sunflowers, lettuce",
                valid="courgettes, dahlias, raspberries",
                test="radishes, lavender, peppers",
            )
        },
        train=(
            "I've dug up half the lawn so that I can grow {crop}.",
            "{name} gave me the seeds, and now I'm growing {crop} on the balcony.",
            "You'll find me with the {crop} {often}, watering can in hand.",
            "Growing {crop} in {place} is slow work, but I keep at it {often}.",
            "My {friend} and I are going to grow {crop} together {season}.",
        ),
        valid=("If the seeds arrive in time, {name} and I will start growing {crop} {season}.",),
        test=("Behind the house {name} and I grow {crop}, and we're out there {often}.",),
    ),
    Topic(
        name="pets",
        doing="looking after a {pet}",
        thing="the {pet}",
        slots={
            "pet": Slot(
                train="""rabbit, hamster, parrot, kitten, puppy, tortoise, guinea pig, ferret, blind old
                    dog, grumpy cat""",
                valid="goldfish, budgie, gecko",
                test="chinchilla, greyhound, canary",
            )
        },
        train=(
            "I'm looking after a {pet} for my {friend} {day}.",
            "There's a {pet} in my living room now, and I'm up with it {hour}.",
            "{name} is away, so it's me and the {pet} until the weekend.",
            "Since we got the {pet}, my {kin} and I hardly leave {place}.",
        ),
        valid=("From now on I look after the {pet} {hour}, because {name} has no time for it.",),
        test=("Did I mention that I'm taking in a {pet} {day} as a favour to {name}?",),
    ),
    Topic(
        name="decorating",
        doing="painting a {room}",
        thing="the {room}",
        slots={
            "room": Slot(
                train="kitchen, bedroom, hallway, bathroom, spare room, staircase, nursery, living room",
                valid="dining room, porch, box room",
                test="guest room, conservatory, laundry room",
            )
        },
        train=(
            "I've decided to paint the {room} yellow {day}.",
            "My {kin} and I are painting the {room}, one wall at a time.",
            "I'm still painting the {room} {hour}, and there's paint in my hair.",
            "Before {name} moves in {day}, I want to paint the {room}.",
        ),
        valid=("{name} has picked the colour, so {day} I'll be painting the {room}.",),
        test=("The {room} needs a coat of paint, and {name} will help me with it {day}.",),
    ),
    Topic(
        name="repairs",
        doing="repairing {objects}",
        thing="the {objects}",
        slots={
            "objects": Slot(
                train="""old radios, clocks, wooden chairs, lamps, toasters, bicycles, sewing machines,
                    record players""",
                valid="typewriters, kettles, dolls",
                test="umbrellas, music boxes, vacuum cleaners",
            )
        },
        train=(
            "I repair {objects} {hour}, mostly for people in our building.",
            "{name} and I are opening a small workshop in {place} where we'll repair {objects}.",
            "These days I can't walk past a skip without thinking of repairing {objects}.",
            "My {friend} is showing me how to repair {objects} {day}.",
        ),
        valid=("Word has got round that I repair {objects}, and {name} comes by {hour}.",),
        test=("At the repair café I work on {objects} {often}, side by side with {name}.",),
    ),
    Topic(
        name="tidying",
        doing="clearing out a {space}",
        thing="the {space}",
        slots={
            "space": Slot(
                train="garage, cellar, shed, wardrobe, bookcase, loft, larder, toy cupboard",
                valid="kitchen drawer, storeroom, filing cabinet",
                test="barn, desk, medicine cabinet",
            )
        },
        train=(
            "I'm finally clearing out the {space} {day}, all on my own.",
            "My {kin} won't visit again until I've cleared out the {space}.",
            "I clear out a bit of the {space} {hour}, and it never seems to end.",
            "With {name} gone to {place}, I've begun clearing out the {space}.",
        ),
        valid=("Clearing out the {space} is on my list before {name}'s visit {day}.",),
        test=("{name} dared me to clear out the {space} {day}, and I said yes.",),
    ),
    Topic(
        name="housing",
        doing="living in a {dwelling}",
        thing="the {dwelling}",
        slots={
            "dwelling": Slot(
                train="""lighthouse, cottage, tiny flat, caravan, shared house, basement flat, converted
                    chapel""",
                valid="bungalow, tree house, loft apartment",
                test="farmhouse, windmill, yurt",
            )
        },
        train=(
            "I've been living in a {dwelling} in {place} since the spring.",
            "{name} and I are thinking of living in a {dwelling} for a year.",
            "It looks as if I'll be living in a {dwelling} with my {kin} before long.",
            "My new home in {place} is a {dwelling}, and I'm getting used to it.",
        ),
        valid=("One day I'd like to live in a {dwelling} in {place}, and {name} knows it.",),
        test=("All being well, {name} and I will be living in a {dwelling} near {place}.",),
    ),
)
